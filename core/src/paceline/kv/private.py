"""Slots of draft groups whose entries are no function of the target's tokens: own blocks, shared with nobody."""

from __future__ import annotations

import numpy as np

from paceline.kv.pool import BlockPool
from paceline.kv.ranges import DraftRanges
from paceline.kv.tables import BlockTables

__all__ = ["PrivateSlots"]


class PrivateSlots:
    """Blocks of one private group, handed to live requests while there are any, and back when those go.

    Its pool has as many blocks as the target's, and nothing is ever evicted or preempted for it: a request that gets no
    block has no slots, and drafts no further.

    Args:
        group: Name of the group.
        num_blocks: Blocks of the group's tensors.
        block_size: Slots per block.
        max_seqs: Rows, numbered as those of the target's tables.
        max_blocks_per_seq: Most blocks of a request.

    Attributes:
        tables: Block tables of the group, one row a live request.
        ranges: What is valid of them. No block is ever marked.
    """

    def __init__(self, group: str, num_blocks: int, block_size: int, max_seqs: int, max_blocks_per_seq: int) -> None:
        self.tables = BlockTables(max_seqs, max_blocks_per_seq, block_size)
        self.ranges = DraftRanges(group, 0, max_seqs)
        self.block_ids: list[list[int]] = [[] for _ in range(max_seqs)]
        self.pool = BlockPool(num_blocks)
        self._block_size = block_size

    def capacity(self, rows: np.ndarray) -> np.ndarray:
        """Slots of each row, int64 ``[n]``."""
        return np.array([len(self.block_ids[row]) for row in rows.tolist()], dtype=np.int64) * self._block_size

    def reserve(self, rows: np.ndarray, num_slots: np.ndarray) -> None:
        """Give rows their first ``num_slots`` (int64 ``[n]``) slots, in this order; nothing more where they lack."""
        for row, wanted in zip(rows.tolist(), (-(-num_slots // self._block_size)).tolist(), strict=True):
            held = self.block_ids[row]
            missing = wanted - len(held)
            if 0 < missing <= self.pool.num_free and wanted <= self.tables.max_blocks_per_seq:
                taken = self.pool.take(missing)
                self.tables.write(row, len(held), taken)
                held += taken

    def release(self, row: int) -> None:
        """Take a row's blocks back, and forget what was in them."""
        for block_id in self.block_ids[row]:
            self.pool.unref(block_id)
            self.pool.free(block_id)
        self.block_ids[row] = []
        self.tables.cut(row, 0)
        self.ranges.start(row, 0, self._block_size)
