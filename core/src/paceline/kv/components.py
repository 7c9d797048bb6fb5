"""Draft components: which blocks hold a group's KV made with the whole prefix in view (draft-state rule c)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.api.errors import did_you_mean
from paceline.api.proposers import KVGroup
from paceline.kv.errors import KVGroupError
from paceline.kv.index import Entry, PrefixIndex
from paceline.kv.private import PrivateSlots
from paceline.kv.ranges import DraftRanges
from paceline.kv.tables import BlockTables

__all__ = ["DraftComponents"]


class DraftComponents:
    """The ranges of all draft groups, and the marks that they leave on blocks.

    A range that begins at 0 marks the full blocks that it covers. A range that begins later makes entries that lack
    part of the prefix; where it wrote into shared blocks, their marks go, and other requests' ranges end there.

    Private groups stand apart: their blocks are not the target's, no hit brings them and none is marked.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        tables: BlockTables,
        index: PrefixIndex,
        max_seqs: int,
        block_size: int,
        num_blocks: int,
    ) -> None:
        self._tables = tables
        self._index = index
        self._block_size = block_size
        self.ranges: dict[str, DraftRanges] = {}
        self.private: dict[str, PrivateSlots] = {}
        for number, group in enumerate(groups):
            if group.name in (*self.ranges, *self.private, "target"):
                raise KVGroupError(f'the name "{group.name}" of a draft KV group is taken; give each its own name')
            if group.private:
                room = num_blocks, block_size, max_seqs, tables.max_blocks_per_seq
                self.private[group.name] = PrivateSlots(group.name, *room)
            else:
                self.ranges[group.name] = DraftRanges(group.name, 1 << number, max_seqs)

    def group(self, name: str) -> DraftRanges:
        """The ranges of a group.

        Raises:
            KVGroupError: if there is none of that name.
        """
        if name in self.private:
            return self.private[name].ranges
        if name not in self.ranges:
            names = [*self.ranges, *self.private]
            raise KVGroupError(f'there is no draft KV group "{name}"{did_you_mean(name, names)}')
        return self.ranges[name]

    def tables(self, name: str) -> BlockTables:
        """The block tables by which a group's slots are found."""
        return self.private[name].tables if name in self.private else self._tables

    def hits(self, entries: Sequence[Entry], partial: Mapping[str, int]) -> dict[str, int]:
        """Tokens of a prefix hit for which each group has its component, from the first block on.

        Args:
            entries: Its whole blocks.
            partial: For each group, how much more there is after them; nothing for those that it lacks.
        """
        hits = {}
        for name, each in self.ranges.items():
            num_leading = self._num_leading(entries, each.bit)
            more = partial.get(name, 0) if num_leading == len(entries) else 0
            hits[name] = num_leading * self._block_size + more
        return hits

    def of_block(self, block_id: int, num_tokens: int) -> dict[str, int]:
        """How many of the first ``num_tokens`` of a published block have each group's KV: all or none."""
        bits = self._index.components(block_id)
        return {name: num_tokens if bits & each.bit else 0 for name, each in self.ranges.items()}

    def of_row(self, row: int, start: int, num_tokens: int) -> dict[str, int]:
        """How many of a live request's positions from ``start`` on, at most ``num_tokens``, have each group's KV."""
        return {
            name: min(max(int(each.computed[row]) - start, 0), num_tokens) if each.first[row] == 0 else 0
            for name, each in self.ranges.items()
        }

    def _num_leading(self, entries: Sequence[Entry], bit: int) -> int:
        for number, entry in enumerate(entries):
            if not self._index.components(entry.block_id) & bit:
                return number
        return len(entries)

    def start(self, row: int, hits: dict[str, int]) -> None:
        """Begin a request with the lengths that a prefix hit gave."""
        for name, num_tokens in hits.items():
            self.ranges[name].start(row, num_tokens, self._block_size)

    def release(self, row: int) -> None:
        """Take back what private groups gave a request."""
        for each in self.private.values():
            each.release(row)

    def clamp(self, row: int, num_tokens: int) -> None:
        """Cut all ranges of a request, but for private ones, to its first ``num_tokens`` positions."""
        for each in self.ranges.values():
            each.clamp(row, num_tokens)

    def mark(self, row: int, num_full_blocks: int) -> None:
        """Mark the blocks that the ranges cover among the row's first, full and committed ones."""
        for each in self.ranges.values():
            if each.first[row] == 0:
                stop = min(num_full_blocks, int(each.computed[row]) // self._block_size)
                for block_id in self._tables.array[row, int(each.num_marked[row]) : stop]:
                    self._index.add_component(int(block_id), each.bit)
                each.num_marked[row] = stop

    def record(self, each: DraftRanges, rows: np.ndarray, first: np.ndarray, computed: np.ndarray) -> None:
        """Store checked ranges int64 ``[n]`` of a group."""
        is_late = (first > 0) & (each.bit > 0)
        late = [(row, each.written_from(row, int(first[i])), i) for i, row in enumerate(rows.tolist()) if is_late[i]]
        each.first[rows] = first
        each.computed[rows] = computed
        for row, start, i in late:
            each.num_marked[row] = 0
            self._overwritten(each, row, start, int(computed[i]))

    def _overwritten(self, each: DraftRanges, row: int, start: int, stop: int) -> None:
        for depth in range(start // self._block_size, -(-stop // self._block_size)):
            block_id = int(self._tables.array[row, depth])
            self._index.drop_components(block_id, each.bit)
            for other in np.flatnonzero(self._tables.array[:, depth] == block_id).tolist():
                if other != row:
                    each.clamp(other, depth * self._block_size)
                    each.num_marked[other] = min(each.num_marked[other], depth)
