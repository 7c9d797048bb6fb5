"""``EngineConfig``: everything that an engine is made from. Unknown names are refused with the nearest known one."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from paceline.config.errors import ConfigError
from paceline.host.options import CheckedModel
from paceline.host.selection import Selection

__all__ = ["EngineConfig", "PluginChoice"]


class PluginChoice(CheckedModel):
    """A plugin named in a list, with its options.

    Attributes:
        name: Its name.
        options: Its options, validated by the plugin's own model.
    """

    owner = "plugin choice"
    error_class = ConfigError

    name: str = Field(min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)


def _as_choice(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


def _dtype_name(dtype: object) -> object:
    """``half`` and ``float`` by their full names, and a ``torch.dtype`` by its name without importing torch."""
    name = str(dtype).removeprefix("torch.")
    return {"half": "float16", "float": "float32"}.get(name, name)


def _without_none(name: object) -> object:
    return None if name == "none" else name


def _path_text(path: object) -> object:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


PluginChoices = tuple[
    Annotated[PluginChoice, BeforeValidator(_as_choice, json_schema_input_type=str | PluginChoice)], ...
]
DtypeName = Literal["auto", "float32", "float16", "bfloat16"]
Dtype = Annotated[DtypeName, BeforeValidator(_dtype_name, json_schema_input_type=DtypeName | Literal["half", "float"])]
PolicyPath = Annotated[str | None, BeforeValidator(_path_text)]
ProposerName = Annotated[Annotated[str, Field(min_length=1)] | None, BeforeValidator(_without_none)]


class EngineConfig(CheckedModel):
    """Everything that an engine is made from.

    Attributes:
        model: A folder, a hub id, a GGUF file, or ``"demo"``.
        tokenizer: Where the tokenizer lies, if not with the model.
        revision: Branch, tag or commit on the hub.
        trust_remote_code: Whether code that comes with the model may run.
        dtype: Dtype of the weights; ``"auto"`` = the checkpoint's own, float32 on CPU.
        quantization: On the CPU; ``"int8"`` = weights of 8 bits with a scale for each output, ``"int4"`` = of 4 bits
            with a scale and a minimum for 32 inputs of an output, the LM head of 8; ``None`` = as they are.
        device: Device string; ``"auto"`` = CUDA where there is one.
        numerics: ``"fast"``, or ``"exact"`` for results that no batch, chunking or cache hit changes by a bit.
        max_model_len: Longest sequence in tokens; ``None`` = the model's.
        max_num_seqs: Most requests in one step.
        max_num_batched_tokens: Most tokens in one step.
        block_size: Tokens per KV block.
        num_gpu_blocks_override: Number of KV blocks, on any device; ``None`` = from memory.
        kv_cache_memory_bytes: Bytes for KV; ``None`` = from ``gpu_memory_utilization``.
        gpu_memory_utilization: Share of the device's memory for weights and KV.
        enable_prefix_caching: Whether KV is shared between requests.
        enable_chunked_prefill: Always true: prompts are computed in chunks.
        seed: Makes the seeds of requests without one reproducible.
        proposer: Name of the proposer; ``None`` or ``"none"`` = no speculation.
        num_speculative_tokens: Most draft tokens for each request and step; ``None`` = 5, or what the proposer gives.
        proposer_options: Options of the proposer.
        eviction_policy: Name of the eviction policy.
        eviction_policy_options: Its options.
        cache_identity: Contributors to the cache identity: names, or mappings of ``name`` and ``options``.
        controller: Name of the speculation controller.
        controller_options: Its options.
        constraints: Constraints that requests may ask for: names, or mappings of ``name`` and ``options``.
        observers: Observers: names, or mappings of ``name`` and ``options``.
        plugin_policy: File that says which plugins may run; ``None`` = found by ``host.policy_file.policy_in_force``.
    """

    owner = "engine configuration"
    error_class = ConfigError

    model: str = Field(min_length=1)
    tokenizer: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    dtype: Dtype = "auto"
    quantization: Literal["int8", "int4"] | None = None
    device: str = "auto"
    numerics: Literal["fast", "exact"] = "fast"
    max_model_len: int | None = Field(default=None, ge=1)
    max_num_seqs: int = Field(default=16, ge=1)
    max_num_batched_tokens: int = Field(default=2048, ge=1)
    block_size: int = Field(default=16, ge=1)
    num_gpu_blocks_override: int | None = Field(default=None, ge=1)
    kv_cache_memory_bytes: int | None = Field(default=None, ge=1)
    gpu_memory_utilization: float = Field(default=0.9, gt=0.0, le=1.0)
    enable_prefix_caching: bool = True
    enable_chunked_prefill: Literal[True] = True
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    proposer: ProposerName = None
    num_speculative_tokens: int | None = Field(default=None, ge=1)
    proposer_options: dict[str, Any] = Field(default_factory=dict)
    eviction_policy: str = Field(default="lru", min_length=1)
    eviction_policy_options: dict[str, Any] = Field(default_factory=dict)
    cache_identity: PluginChoices = ()
    controller: str = Field(default="fixed", min_length=1)
    controller_options: dict[str, Any] = Field(default_factory=dict)
    constraints: PluginChoices = ()
    observers: PluginChoices = ()
    plugin_policy: PolicyPath = None

    @model_validator(mode="after")
    def _fits_together(self) -> EngineConfig:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens} is less than max_num_seqs = "
                f"{self.max_num_seqs}: each decoding request takes a token of the step; raise the one, lower the other"
            )
        if self.num_gpu_blocks_override is not None and self.kv_cache_memory_bytes is not None:
            raise ValueError("num_gpu_blocks_override and kv_cache_memory_bytes both give the KV size; give one")
        if self.proposer is None and (self.num_speculative_tokens is not None or self.proposer_options):
            raise ValueError("num_speculative_tokens and proposer_options need a proposer; name one with proposer")
        self._refuse_repeats()
        return self

    def _refuse_repeats(self) -> None:
        for option in ("cache_identity", "constraints", "observers"):
            names = [choice.name for choice in getattr(self, option)]
            repeated = next((name for name in names if names.count(name) > 1), None)
            if repeated is not None:
                raise ValueError(f'{option} names "{repeated}" twice; name each plugin once')

    def selections(self) -> list[Selection]:
        """The plugins that this configuration names."""
        named = [
            Selection("eviction_policy", self.eviction_policy, self.eviction_policy_options),
            Selection("controller", self.controller, self.controller_options),
        ]
        named += [Selection("cache_identity", choice.name, choice.options) for choice in self.cache_identity]
        named += [Selection("constraint", choice.name, choice.options) for choice in self.constraints]
        named += [Selection("observer", choice.name, choice.options) for choice in self.observers]
        if self.proposer is not None:
            named.append(Selection("proposer", self.proposer, self.proposer_options))
        return named
