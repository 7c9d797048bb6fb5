"""What every attention layer of one step needs to know about the rows of the flattened batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.integer[Any]]
Int64Array = npt.NDArray[np.int64]


@dataclass(slots=True)
class AttentionBatch:
    """One step's rows, made by `build` and valid for that step only.

    A row's *keys* are numbered by position: key i < ``visible`` is entry i of its sequence's block table, key
    ``visible + j`` is the table entry ``paths[j]``. The row itself is its last key, so its position is
    ``num_keys - 1``.

    Host arrays (numpy, int64) are for planning, device tensors (int64) for the kernels. What a layer derives from
    them is kept with `cached`, so it is computed once a step and not once a layer.
    """

    block_size: int
    query_starts: Int64Array  # [S+1] rows query_starts[s]:query_starts[s+1] belong to sequence s
    row_seq: Int64Array  # [T]
    visible: Int64Array  # [T]
    paths: Int64Array | None  # [T, P] or None if no row belongs to a tree
    num_keys: Int64Array  # [T] visible + path length
    first_keys: Int64Array  # [S] keys before it are never read
    slots: torch.Tensor  # [T] on the device, -1 = no write
    block_tables: torch.Tensor  # [S, max_blocks] on the device
    write_rows: torch.Tensor | None  # rows with slots >= 0, None if that is all of them
    write_slots: torch.Tensor  # slots[write_rows]
    _cache: dict[Hashable, Any] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        *,
        query_starts: IntArray,
        visible: IntArray,
        slots: IntArray,
        block_tables: IntArray,
        block_size: int,
        paths: IntArray | None = None,
        first_keys: IntArray | None = None,
        device: torch.device | str = "cpu",
    ) -> AttentionBatch:
        """Make a batch from numpy arrays of any integer dtype, which are copied.

        Args:
            query_starts: [S+1] row ranges of the sequences, from 0 to T. Empty ranges are allowed.
            visible: [T] row t attends to entries [0, visible[t]) of its sequence (chain row: position + 1;
                tree row: number of committed tokens).
            slots: [T] global KV slot (block id * block size + offset) that the row writes, -1 for none.
            block_tables: [S, max_blocks] block ids, one row a sequence of this batch, unused entries any valid id.
            block_size: Tokens in a block.
            paths: [T, P] for tree rows the in-sequence entries of the ancestors in depth order and then of the row
                itself, padded with -1 on the right; all -1 for chain rows. None if there are no trees.
            first_keys: [S] positions before it are never read (KV that is valid only from there on). None = 0.
            device: Where the kernels run.
        """
        starts, seen = _int64(query_starts), _int64(visible)
        tree = None if paths is None or not (paths >= 0).any() else _int64(paths)
        num_keys = seen if tree is None else seen + (tree >= 0).sum(axis=1)
        row_seq = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        first = np.zeros(len(starts) - 1, np.int64) if first_keys is None else _int64(first_keys)
        _check(starts, row_seq, num_keys, first, len(slots))
        writes = np.flatnonzero(slots >= 0)
        device_slots = _upload(slots, device)
        rows = None if len(writes) == len(slots) else _upload(writes, device)
        return cls(
            block_size=block_size,
            query_starts=starts,
            row_seq=row_seq,
            visible=seen,
            paths=tree,
            num_keys=num_keys,
            first_keys=first,
            slots=device_slots,
            block_tables=_upload(block_tables, device),
            write_rows=rows,
            write_slots=device_slots if rows is None else device_slots[rows],
        )

    @property
    def num_rows(self) -> int:
        return len(self.row_seq)

    @property
    def device(self) -> torch.device:
        return self.slots.device

    def cached(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """Return what `build` gave the first time this key was asked for in this step."""
        if key not in self._cache:
            self._cache[key] = build()
        return self._cache[key]

    def upload(self, array: IntArray) -> torch.Tensor:
        """Copy a host integer array to the batch's device as int64."""
        return _upload(array, self.device)

    def lowest_keys(self, window: int | None) -> Int64Array:
        """First position each row sees, [T]: a row at position p sees those > p - window."""
        first = self.first_keys[self.row_seq]
        return first if window is None else np.maximum(first, self.num_keys - window)


def _int64(array: IntArray) -> Int64Array:
    return np.array(array, dtype=np.int64)


def _upload(array: IntArray, device: torch.device | str) -> torch.Tensor:
    return torch.from_numpy(_int64(array)).to(device)


def _check(starts: Int64Array, row_seq: Int64Array, num_keys: Int64Array, first: Int64Array, num_slots: int) -> None:
    assert num_slots > 0, "a step has at least one row"
    assert starts[0] == 0 and (np.diff(starts) >= 0).all(), "query_starts must begin at 0 and not fall"
    assert len(row_seq) == len(num_keys) == num_slots, "query_starts, visible and slots differ in the number of rows"
    assert (num_keys > first[row_seq]).all(), "a row must see at least itself"
