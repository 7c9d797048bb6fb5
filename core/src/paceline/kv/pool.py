"""The pool: which blocks are free, and how many references each other one has."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["BlockPool"]


class BlockPool:
    """A free list and reference counts. A block that has no reference and is not free holds cached KV."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def free_ids(self) -> tuple[int, ...]:
        """The free blocks, the next to be taken last."""
        return tuple(self._free)

    def refs(self, block_id: int) -> int:
        """References to a block."""
        return self._refs[block_id]

    def take(self, count: int) -> list[int]:
        """Take free blocks, one reference each. There must be as many."""
        assert 0 <= count <= len(self._free), f"{count} blocks asked for, {len(self._free)} free"
        taken = [self._free.pop() for _ in range(count)]
        self.ref(taken)
        return taken

    def ref(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each."""
        for block_id in block_ids:
            self._refs[block_id] += 1

    def unref(self, block_id: int) -> int:
        """Drop a reference; return how many are left."""
        assert self._refs[block_id] > 0, f"block {block_id} has no reference to drop"
        self._refs[block_id] -= 1
        return self._refs[block_id]

    def free(self, block_id: int) -> None:
        """Put a block that has no reference on the free list."""
        assert self._refs[block_id] == 0, f"block {block_id} is freed with {self._refs[block_id]} references"
        self._free.append(block_id)
