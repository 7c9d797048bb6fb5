"""The attention function that transformers' models call: it writes KV to the paged cache, then attends there.

It is registered under the name ``paceline`` without a mask function, so that models build no mask. It keeps no state:
all it needs travels with each forward as the keyword ``paceline_step``, so any number of engines share a process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from paceline.model.errors import UnsupportedModelError
from paceline.ops.batch import AttentionBatch
from paceline.ops.kv import write_batch_kv
from paceline.ops.select import Ops

__all__ = ["ATTENTION_NAME", "StepContext", "own_attention", "register"]

ATTENTION_NAME = "paceline"

# Keywords by which a model asks its attention for arithmetic that is not there.
_REFUSED_KEYWORDS = ("position_bias", "head_mask")


@dataclass(slots=True)
class StepContext:
    """One step of one runner, as its attention layers see it; valid during one forward.

    Attributes:
        batch: The rows and their block tables.
        layers: ``(k, v)`` by number of layer, ``[num_blocks, block_size, kv_heads, head_size]``.
        windows: Window by number of layer, in tokens; ``None`` = full attention.
        ops: The attention body in use.
    """

    batch: AttentionBatch
    layers: Mapping[int, tuple[torch.Tensor, torch.Tensor]]
    windows: Mapping[int, int | None]
    ops: Ops


def register() -> None:
    """Make the attention known to transformers. Repeats are harmless."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention_forward)


def paged_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend on a flattened batch.

    Args:
        module: The attention layer; ``module.layer_idx`` selects the KV tensors.
        query: ``[1, heads, rows, key_size]``.
        key: ``[1, kv_heads, rows, key_size]``.
        value: ``[1, kv_heads, rows, value_size]``.
        attention_mask: Not used; visibility is the batch's.
        scaling: Factor on the scores; ``None`` = ``key_size ** -0.5``.
        kwargs: ``paceline_step`` and the model's own keywords, of which ``softcap`` (of the scores) and ``s_aux``
            (``[heads]``: sinks) are followed.

    Returns:
        ``[1, rows, heads, value_size]`` and no attention weights.

    Raises:
        UnsupportedModelError: if the step did not arrive, or the layer asks for arithmetic that is not there.
    """
    step = _step_of(module, kwargs)
    k_cache, v_cache = step.layers[module.layer_idx]
    k, v = key[0].transpose(0, 1), value[0].transpose(0, 1)
    _check_shapes(module, k, k_cache, v, v_cache)
    write_batch_kv(k_cache, v_cache, k, v, step.batch)
    out = step.ops.attention(
        query[0].transpose(0, 1),
        k_cache,
        v_cache,
        step.batch,
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        step.windows[module.layer_idx],
        softcap=kwargs.get("softcap"),
        sinks=kwargs.get("s_aux"),
    )
    return out[None], None


@contextmanager
def own_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let the model use transformers' eager attention inside the block."""
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(ATTENTION_NAME)


def _step_of(module: nn.Module, kwargs: dict[str, Any]) -> StepContext:
    step = kwargs.get("paceline_step")
    if step is None:
        raise UnsupportedModelError(
            f"{type(module).__name__} was called without the step: its model does not pass keywords of its forward on "
            "to its attention layers; choose another model"
        )
    for keyword in _REFUSED_KEYWORDS:
        if kwargs.get(keyword) is not None:
            raise UnsupportedModelError(
                f'{type(module).__name__} asks its attention for "{keyword}", which the paged attention does not have; '
                "choose another model"
            )
    if not getattr(module, "is_causal", True):
        raise UnsupportedModelError(f"{type(module).__name__} is not causal; only causal attention is served")
    return step


def _check_shapes(
    module: nn.Module, k: torch.Tensor, k_cache: torch.Tensor, v: torch.Tensor, v_cache: torch.Tensor
) -> None:
    if k.shape[1:] != k_cache.shape[2:] or v.shape[1:] != v_cache.shape[2:]:
        raise UnsupportedModelError(
            f"layer {module.layer_idx} ({type(module).__name__}) makes keys {tuple(k.shape[1:])} and values "
            f"{tuple(v.shape[1:])} per token, but its configuration promises {tuple(k_cache.shape[2:])} and "
            f"{tuple(v_cache.shape[2:])}; choose another model"
        )
