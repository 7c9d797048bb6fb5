"""Block tables: one row of block ids for each live request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["BlockTables"]


class BlockTables:
    """Rows of block ids, as the attention kernels read them.

    Attributes:
        array: int32 ``[max_seqs, max_blocks_per_seq]``; unused entries are 0.
    """

    def __init__(self, max_seqs: int, max_blocks_per_seq: int, block_size: int) -> None:
        self.array = np.zeros((max_seqs, max_blocks_per_seq), dtype=np.int32)
        self.max_blocks_per_seq = max_blocks_per_seq
        self._block_size = block_size
        self._free_rows = list(range(max_seqs - 1, -1, -1))

    @property
    def num_free_rows(self) -> int:
        """Requests that can still be admitted."""
        return len(self._free_rows)

    def take_row(self) -> int:
        """Take a row of zeros. There must be one."""
        assert self._free_rows, f"all {len(self.array)} block tables are in use"
        return self._free_rows.pop()

    def free_row(self, row: int) -> None:
        """Zero a row and give it back."""
        self.array[row] = 0
        self._free_rows.append(row)

    def write(self, row: int, start: int, block_ids: Sequence[int]) -> None:
        """Write block ids from entry ``start`` on."""
        self.array[row, start : start + len(block_ids)] = block_ids

    def cut(self, row: int, num_blocks: int) -> None:
        """Zero the entries from ``num_blocks`` on."""
        self.array[row, num_blocks:] = 0

    def slots(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Slots int64 ``[n]`` of int64 ``positions [n]`` in int64 ``rows [n]``; each must be reserved."""
        block_ids = self.array[rows, positions // self._block_size].astype(np.int64)
        return block_ids * self._block_size + positions % self._block_size
