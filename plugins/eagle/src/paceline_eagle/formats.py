"""The published formats: from a checkpoint's configuration and tensor names to one configuration and one naming.

Which format it is follows from the content alone. Known are the original EAGLE-1/2 (Li et al. 2024) and EAGLE-3
(2025) files, those of the ``speculators`` library (``eagle`` and ``eagle3``), and vLLM's names for any of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from paceline.api import PluginError
from paceline_eagle.config import EAGLE, EAGLE3, FINAL, HeadConfig, Version
from paceline_eagle.config_files import EAGLE3_VARIANTS

__all__ = ["DRAFT_TO_TARGET", "TARGET_TO_DRAFT", "canonical_names", "read_config"]

DRAFT_TO_TARGET = "d2t"
TARGET_TO_DRAFT = "t2d"

_SPECULATORS_TYPES = {"eagle": EAGLE, "eagle3": EAGLE3}
_RENAMES = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^(midlayer|layers\.0|transformer)\."), "layer."),
    (re.compile(r"^fusion_fc\."), "fc."),
    (re.compile(r"^embedding_layernorm\."), "embedding_norm."),
    (re.compile(r"^pre_lm_head_layernorm\."), "norm."),
    (re.compile(r"^draft_id_to_target_id$"), DRAFT_TO_TARGET),
)
# What a file may hold besides: copies of the target's tensors, and tables that follow from the configuration.
_NOT_OF_THE_HEAD = re.compile(r"verifier_(norm|lm_head)\.weight|(layer\.self_attn\.)?rotary_emb\..*")
_TARGETS_IN_EAGLE = re.compile(r"embed_tokens\.weight|lm_head\.weight")
_EAGLE3_ONLY = frozenset({"layer.hidden_norm.weight", DRAFT_TO_TARGET, TARGET_TO_DRAFT})
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """``name in the head -> name in the file``, less what does not belong to the head.

    Raises:
        PluginError: if two tensors of the file are one of the head.
    """
    found: dict[str, str] = {}
    for name in names:
        canonical = _canonical(name)
        if _NOT_OF_THE_HEAD.fullmatch(canonical):
            continue
        if canonical in found:
            raise PluginError(f'the tensors "{found[canonical]}" and "{name}" are the same part of a head; keep one')
        found[canonical] = name
    if not _EAGLE3_ONLY & found.keys():
        found = {name: origin for name, origin in found.items() if not _TARGETS_IN_EAGLE.fullmatch(name)}
    return found


def _canonical(name: str) -> str:
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    return name


def read_config(raw: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], num_target_layers: int) -> HeadConfig:
    """The configuration of a head.

    Args:
        raw: Content of ``config.json``.
        shapes: Shapes of the tensors by the head's own names.
        num_target_layers: Of the target: what the default of ``aux_layers`` depends on.

    Raises:
        PluginError: naming what the files lack or what is not supported.
    """
    version = _version(raw, shapes)
    layer = raw.get("transformer_layer_config", raw)
    if (num_layers := layer.get("num_hidden_layers", 1)) != 1:
        raise PluginError(f"num_hidden_layers is {num_layers}; heads of exactly one layer are supported")
    hidden_size, num_heads = _size(layer, "hidden_size"), _size(layer, "num_attention_heads")
    vocab_size = _size(layer, "vocab_size")
    is_eagle3 = version == EAGLE3
    return HeadConfig(
        version=version,
        hidden_size=hidden_size,
        target_hidden_size=raw.get("target_hidden_size") or hidden_size,
        num_heads=num_heads,
        num_kv_heads=layer.get("num_key_value_heads") or num_heads,
        head_size=layer.get("head_dim") or hidden_size // num_heads,
        intermediate_size=_size(layer, "intermediate_size"),
        rms_norm_eps=layer.get("rms_norm_eps", 1e-6),
        rope=_rope(layer),
        max_position_embeddings=layer.get("max_position_embeddings", 2048),
        vocab_size=vocab_size,
        draft_vocab_size=raw.get("draft_vocab_size") or vocab_size if is_eagle3 else vocab_size,
        aux_layers=_aux_layers(raw, num_target_layers) if is_eagle3 else (FINAL,),
        hidden_act=layer.get("hidden_act", "silu"),
        own_embedding="embed_tokens.weight" in shapes,
        fc_bias="fc.bias" in shapes,
        qkv_bias="layer.self_attn.q_proj.bias" in shapes,
        output_bias="layer.self_attn.o_proj.bias" in shapes,
        qk_norm="layer.self_attn.q_norm.weight" in shapes,
        layernorms=not is_eagle3 and bool(raw.get("layernorms", False)),
        **{name: is_eagle3 and bool(raw.get(name, False)) for name in EAGLE3_VARIANTS},
    )


def _version(raw: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Version:
    if (kind := raw.get("speculators_model_type")) is not None:
        if kind not in _SPECULATORS_TYPES:
            raise PluginError(
                f'speculators_model_type is "{kind}"; supported are {", ".join(sorted(_SPECULATORS_TYPES))}'
            )
        return _SPECULATORS_TYPES[kind]
    if _EAGLE3_ONLY & shapes.keys():
        return EAGLE3
    if "fc.weight" in shapes and "layer.self_attn.q_proj.weight" in shapes:
        return EAGLE
    raise PluginError(
        f"there is no EAGLE head among the tensors {', '.join(sorted(shapes)[:5]) or '(none)'}; "
        "a head has fc.weight and one layer, named midlayer.* or layers.0.*"
    )


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise PluginError(f"the configuration gives {key} = {value!r}, which must be a positive integer")
    return value


def _aux_layers(raw: Mapping[str, Any], num_target_layers: int) -> tuple[int | str, ...]:
    nested = raw.get("eagle_config") or {}
    layers = raw.get("eagle_aux_hidden_state_layer_ids") or nested.get("eagle_aux_hidden_state_layer_ids")
    return tuple(layers) if layers else (2, num_target_layers // 2, num_target_layers - 3)


def _rope(layer: Mapping[str, Any]) -> dict[str, Any]:
    """``rope_parameters``, or the older ``rope_theta`` and ``rope_scaling``, as the former."""
    rope = {"rope_theta": layer.get("rope_theta", 10000.0)}
    rope.update(layer.get("rope_scaling") or {})
    rope.update(layer.get("rope_parameters") or {})
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type", "default")
    if rope["rope_type"] not in _ROPE_TYPES:
        raise PluginError(f'RoPE of type "{rope["rope_type"]}" is not supported; {", ".join(_ROPE_TYPES)} are')
    return rope
