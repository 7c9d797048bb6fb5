"""What the core must know of a transformers model: where its parts are, its KV geometry, what it may not have.

This module and ``bridge`` hold all knowledge of transformers' model classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

import torch
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

from paceline.api import KVGroup
from paceline.model.errors import UnsupportedModelError
from paceline.model.rope import rope_groups

__all__ = [
    "attention_windows",
    "causal_lm_class",
    "decoder_layers",
    "drop_unused_window",
    "max_positions",
    "refuse_unsupported_class",
    "refuse_unsupported_config",
    "source_of",
    "tapped",
    "target_kv_group",
    "text_config",
]

_SERVABLE_LAYER_TYPES = ("full_attention", "sliding_attention")


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """The configuration of the language model (a multimodal one nests it)."""
    return config.get_text_config(decoder=True)


def refuse_unsupported_config(config: PretrainedConfig, name: str) -> None:
    """Refuse what can be told from the configuration alone, before any weight is read.

    Raises:
        UnsupportedModelError: encoder-decoder, or layer types other than full and sliding attention.
    """
    text = text_config(config)
    if config.is_encoder_decoder:
        _refuse(name, config, "is an encoder-decoder model; only decoder-only causal LMs are served")
    for layer_type in getattr(text, "layer_types", None) or ():
        if layer_type not in _SERVABLE_LAYER_TYPES:
            known = ", ".join(_SERVABLE_LAYER_TYPES)
            _refuse(name, config, f'has layers of type "{layer_type}"; served are: {known}')


def causal_lm_class(config: PretrainedConfig) -> type[PreTrainedModel] | None:
    """transformers' own causal LM class for a configuration, or ``None``."""
    return MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)


def refuse_unsupported_class(model_class: type[PreTrainedModel], config: PretrainedConfig, name: str) -> None:
    """Refuse a model class that keeps recurrent state or has attention of its own.

    Raises:
        UnsupportedModelError: naming the class.
    """
    if model_class._is_stateful:
        _refuse(name, config, "keeps recurrent state, which is not a paged KV cache; choose an attention-only model")
    if not model_class._supports_attention_backend:
        reason = "does not send its attention through transformers' attention interface; choose another model"
        _refuse(name, config, f"is a {model_class.__name__}, which {reason}")


def attention_windows(config: PretrainedConfig) -> list[int | None]:
    """Window of each decoder layer in tokens; ``None`` = full attention."""
    text = text_config(config)
    window = getattr(text, "sliding_window", None) or None
    layer_types = getattr(text, "layer_types", None)
    if layer_types is None:
        return [window] * text.num_hidden_layers
    return [window if layer_type == "sliding_attention" else None for layer_type in layer_types]


def drop_unused_window(model: PreTrainedModel) -> None:
    """Take a window out of the configuration of a model whose code never looks at it, as Llama's does not."""
    text = text_config(model.config)
    if getattr(text, "layer_types", None) is not None or not getattr(text, "sliding_window", None):
        return
    decoder = model.get_decoder()
    owners: set[Any] = {type(module) for module in (decoder, *decoder_layers(model)[0].modules())}
    if not any("sliding_window" in source_of(owner) for owner in owners):
        text.sliding_window = None


@cache
def source_of(owner: Any) -> str:
    """The source of a class; ``""`` where it cannot be had."""
    try:
        return inspect.getsource(owner)
    except (OSError, TypeError):
        return ""


def target_kv_group(config: PretrainedConfig, *, dtype: torch.dtype, fingerprint: str, name: str = "target") -> KVGroup:
    """The paged KV layers that a model of this configuration needs."""
    text = text_config(config)
    heads = text.num_attention_heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // heads
    return KVGroup(
        name=name,
        num_layers=text.num_hidden_layers,
        num_kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        key_size=head_size,
        value_size=head_size,
        dtype=str(dtype).removeprefix("torch."),
        fingerprint=fingerprint,
    )


def max_positions(config: PretrainedConfig) -> int | None:
    """Longest sequence that the model's position encoding was made for, in tokens.

    Dynamic NTK and YaRN reach ``factor`` times beyond what the model was first trained on; a configuration may or may
    not have counted that in.
    """
    text = text_config(config)
    longest = getattr(text, "max_position_embeddings", None)
    if longest is None:
        return None
    return max([longest, *(_reach(group, longest) for group in rope_groups(text))])


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers in order.

    Raises:
        UnsupportedModelError: if there is not exactly one list of them.
    """
    count = text_config(model.config).num_hidden_layers
    decoder = model.get_decoder()
    found = [child for child in decoder.children() if isinstance(child, nn.ModuleList) and len(child) == count]
    if len(found) != 1:
        _refuse(
            model.name_or_path,
            model.config,
            f"has {len(found)} lists of {count} modules in {type(decoder).__name__}; hidden states need exactly one",
        )
    return found[0]


@contextmanager
def tapped(model: PreTrainedModel, taps: tuple[int | str, ...]) -> Iterator[dict[int | str, torch.Tensor]]:
    """Collect hidden states of the forwards made inside the block.

    Args:
        model: A causal LM.
        taps: ``i`` = the residual stream entering layer ``i``; ``"final"`` = after the last norm.

    Yields:
        ``tap -> [rows, hidden]``, filled by the forward.
    """
    features: dict[int | str, torch.Tensor] = {}
    layers = decoder_layers(model) if any(isinstance(tap, int) for tap in taps) else ()
    hooks = [
        model.get_decoder().register_forward_hook(_save_output(features, tap))
        if isinstance(tap, str)
        else layers[tap].register_forward_pre_hook(_save_input(features, tap), with_kwargs=True)
        for tap in taps
    ]
    try:
        yield features
    finally:
        for hook in hooks:
            hook.remove()


def _save_input(features: dict[int | str, torch.Tensor], tap: int) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        features[tap] = hidden[0]

    return hook


def _save_output(features: dict[int | str, torch.Tensor], tap: str) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        features[tap] = output[0][0]

    return hook


def _reach(rope: dict[str, Any], longest: int) -> int:
    factor = rope.get("factor") or 1.0
    if rope["rope_type"] == "dynamic":
        return int(longest * factor)
    if rope["rope_type"] == "yarn":
        return int((rope.get("original_max_position_embeddings") or 0) * factor)
    return 0


def _refuse(name: str, config: PretrainedConfig, reason: str) -> NoReturn:
    raise UnsupportedModelError(f'model "{name}" (type "{config.model_type}") {reason}')
