"""Cutting the rows of a batch into units that share keys, and units into panels that run as one kernel call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from paceline.ops.batch import AttentionBatch, Int64Array


@dataclass(slots=True)
class Units:
    """U runs of consecutive rows of one sequence. Host arrays, int64 [U]."""

    starts: Int64Array  # first row
    lengths: Int64Array  # rows
    seqs: Int64Array

    def __getitem__(self, chosen: Int64Array) -> Units:
        return Units(self.starts[chosen], self.lengths[chosen], self.seqs[chosen])

    def __len__(self) -> int:
        return len(self.starts)


def cut_units(batch: AttentionBatch, max_rows: Int64Array) -> Units:
    """Cut each row run of a sequence after every max_rows[s] rows, [S]."""
    offsets = np.arange(batch.num_rows) - batch.query_starts[batch.row_seq]
    starts = np.flatnonzero(offsets % max_rows[batch.row_seq] == 0)
    lengths = np.diff(np.append(starts, batch.num_rows))
    return Units(starts, lengths, batch.row_seq[starts])


def reduce_rows(ufunc: np.ufunc, per_row: Int64Array, units: Units) -> Int64Array:
    """ufunc.reduce (np.maximum, np.minimum) of a row quantity over the rows of each unit, [U].

    The units may be a selection: the rows between two of them are left out.
    """
    if len(units) == 0:
        return np.zeros(0, np.int64)
    return ufunc.reduce(per_row[padded_rows(units)], axis=1)


def padded_rows(units: Units) -> Int64Array:
    """Row numbers [U, max length]; short units repeat their last row."""
    steps = np.arange(units.lengths.max())
    return units.starts[:, None] + np.minimum(steps, units.lengths[:, None] - 1)


def split_by_size(sizes: Int64Array, ratio: int, max_total: int) -> list[Int64Array]:
    """Split items into groups padded to their largest size.

    Within a group the sizes differ by at most the factor `ratio`, and count * largest stays within max_total
    (single items apart). Returns index arrays.
    """
    order = np.argsort(-sizes, kind="stable")
    groups = []
    while len(order):
        largest = sizes[order[0]]
        count = min(int((sizes[order] * ratio >= largest).sum()), max(1, int(max_total // largest)))
        groups.append(order[:count])
        order = order[count:]
    return groups


def slots_of(batch: AttentionBatch, seqs: Int64Array, entries: torch.Tensor) -> torch.Tensor:
    """Global KV slots of table entries [B, L] of B sequences."""
    blocks = torch.div(entries, batch.block_size, rounding_mode="floor")
    block_ids = batch.block_tables[batch.upload(seqs)].gather(1, blocks)
    return block_ids * batch.block_size + entries % batch.block_size


def output_order(batch: AttentionBatch, panels: list[Int64Array]) -> torch.Tensor | None:
    """Index that brings concatenated panel outputs (row numbers [B, R] each) into row order.

    None if they are in order already.
    """
    flat = np.concatenate([rows.reshape(-1) for rows in panels])
    if len(flat) == batch.num_rows and (flat == np.arange(len(flat))).all():
        return None
    order = np.empty(batch.num_rows, np.int64)
    order[flat] = np.arange(len(flat))
    return batch.upload(order)


def in_order(batch: AttentionBatch, parts: list[torch.Tensor], order: torch.Tensor | None) -> torch.Tensor:
    joined = parts[0] if len(parts) == 1 else torch.cat(parts)
    return joined if order is None else joined.index_select(0, order)
