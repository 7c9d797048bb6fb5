"""Writing, moving and copying KV entries. A slot is block id * block size + offset; -1 names none."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.ops.batch import AttentionBatch

LayerKV = tuple[torch.Tensor, torch.Tensor]  # k [num_blocks, block_size, kv_heads, key_size], v likewise


def write_kv(
    k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor
) -> None:
    """Write rows k [T, kv_heads, key_size] and v [T, kv_heads, value_size] to slots int64 [T]; skip slots < 0.

    Slots >= 0 must differ from one another. Synchronises a CUDA device; layers use `write_batch_kv`.
    """
    rows = torch.nonzero(slots >= 0).squeeze(1)
    _write(k_cache, k.index_select(0, rows), slots[rows])
    _write(v_cache, v.index_select(0, rows), slots[rows])


def write_batch_kv(
    k_cache: torch.Tensor, v_cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch
) -> None:
    """`write_kv` for the rows of a step; which rows write is known from the batch, without synchronising."""
    if batch.write_rows is not None:
        k, v = k.index_select(0, batch.write_rows), v.index_select(0, batch.write_rows)
    _write(k_cache, k, batch.write_slots)
    _write(v_cache, v, batch.write_slots)


def move_kv(caches: Sequence[LayerKV], src_slots: torch.Tensor, dst_slots: torch.Tensor) -> None:
    """Copy the entries of src_slots int64 [N] to dst_slots [N] in every layer.

    All of a layer's sources are read before any is written, so the two sets may overlap. Destinations must differ
    from one another.
    """
    for cache in _sides(caches):
        flat = cache.view(-1, *cache.shape[2:])
        flat.index_copy_(0, dst_slots, flat.index_select(0, src_slots))


def copy_blocks(caches: Sequence[LayerKV], src_block_ids: torch.Tensor, dst_block_ids: torch.Tensor) -> None:
    """Copy whole blocks int64 [N] -> [N] in every layer; all are read before any is written."""
    for cache in _sides(caches):
        cache.index_copy_(0, dst_block_ids, cache.index_select(0, src_block_ids))


def _write(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, rows)


def _sides(caches: Sequence[LayerKV]) -> list[torch.Tensor]:
    return [side for layer in caches for side in layer]
