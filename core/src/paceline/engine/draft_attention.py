"""Attention of a proposer's own layers over its KV group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline.engine.paged_model import GroupView
from paceline.kv.manager import KVManager
from paceline.ops.batch import AttentionBatch
from paceline.ops.kv import write_batch_kv
from paceline.ops.select import Ops

__all__ = ["DraftAttention", "draft_batch"]


class DraftAttention:
    """``paceline.api.Attend``: one forward of layers whose KV lies in one group."""

    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]], ops: Ops, batch: AttentionBatch) -> None:
        self._layers = layers
        self._ops = ops
        self._batch = batch

    @torch.inference_mode()
    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None = None,
    ) -> torch.Tensor:
        """Write the rows' entries, then attend; see ``paceline.api.Attend``."""
        keys, values = self._layers[layer]
        write_batch_kv(keys, values, key.to(keys.dtype), value.to(values.dtype), self._batch)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return self._ops.attention(query.to(keys.dtype), keys, values, self._batch, scale, None)


def draft_batch(
    kv: KVManager,
    view: GroupView,
    device: torch.device,
    *,
    row_request: np.ndarray,
    slots: np.ndarray,
    visible: np.ndarray,
    paths: np.ndarray | None,
    first: int,
) -> AttentionBatch:
    """The rows of one forward; see ``paceline.api.ProposerContext.attention``.

    Raises:
        PluginError: if a row would read what nobody wrote, or has no slot of its own.
    """
    computed = view.computed
    view.claim(row_request, slots, visible, paths, first)
    used, seq = np.unique(row_request, return_inverse=True)
    rows = view.table_rows[used]
    global_slots = view.tables.slots(rows[seq], slots)
    global_slots[slots < computed[row_request]] = -1  # valid already, and perhaps shared
    return AttentionBatch.build(
        query_starts=np.concatenate([[0], np.cumsum(np.bincount(seq, minlength=len(used)))]),
        slots=global_slots,
        block_tables=view.tables.array[rows, : -(-int(slots.max() + 1) // kv.block_size)],
        block_size=kv.block_size,
        visible=visible,
        paths=paths,
        first_keys=np.maximum(view.first[used], first),
        device=device,
    )
