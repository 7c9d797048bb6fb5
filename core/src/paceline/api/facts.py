"""Facts about the target model and its requests that plugins may read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["RequestFacts", "SamplingFacts", "TargetFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """The target model as a plugin may know it, fixed for the life of the engine.

    Attributes:
        config: The model's configuration as plain values (``PretrainedConfig.to_dict()``).
        vocab_size: Number of token ids that may be emitted.
        hidden_size: Width of the residual stream.
        num_layers: Number of decoder layers.
        max_model_len: Longest sequence (prompt and output) in tokens.
        max_num_seqs: Most requests in one step.
        block_size: Tokens per KV block.
        dtype: Name of the weights' dtype, such as ``"float32"``.
        device: Device string, such as ``"cpu"`` or ``"cuda:0"``.
        numerics: ``"fast"`` or ``"exact"``.
        tokenizer_fingerprint: Hex digest of the tokenizer's content; ``""`` when there is none.
        weights_fingerprint: Hex digest of the weights' content.
    """

    config: Mapping[str, Any]
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_model_len: int
    max_num_seqs: int
    block_size: int
    dtype: str
    device: str
    numerics: str
    tokenizer_fingerprint: str
    weights_fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFacts:
    """The sampling parameters that shape a request's distribution.

    Attributes:
        temperature: 0 means greedy.
        top_k: 0 means off.
        top_p: 1.0 means off.
        min_p: 0.0 means off.
        seed: The 64-bit seed in force (given, or drawn at admission).
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What is known of a request at admission.

    Attributes:
        request_id: Unique among live requests.
        num_prompt_tokens: Length of the prompt in tokens.
        cache_salt: The caller's salt; ``""`` when none was given.
        trust_domain: Requests of different domains never share learned state or KV.
        metadata: The caller's own fields, as given with the prompt.
    """

    request_id: str
    num_prompt_tokens: int
    cache_salt: str = ""
    trust_domain: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
