"""The prefix index: which block holds the KV of which key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.kv.heads import HeadIndex, Place
from paceline.kv.retention import NO_TERM, RetentionTerm

__all__ = ["Entry", "PrefixIndex"]


@dataclass(slots=True, eq=False)
class Entry:
    """A resident key. It may move from block to block; its children follow, for they hang on the key.

    Attributes:
        key: 32-byte key of the block's content.
        parent: The entry of the block before it; ``None`` at depth 0.
        place: Where it is found by its head.
        tokens: Its tokens, int64 ``[block_size]``.
        depth: Number of blocks before it.
        block_id: The block that hits are given.
        twins: Other blocks with the same content, each in use by the request that computed it.
        trust_domain: Domain of the request that made it.
        created_s: When it was made.
        last_use_s: When it was hit, or its last user let go.
        children: Resident entries whose parent it is.
        hits: Prefix hits on it.
        retention: The strongest of what its users asked for.
    """

    key: bytes
    parent: Entry | None
    place: Place
    tokens: np.ndarray
    depth: int
    block_id: int
    trust_domain: str
    created_s: float
    last_use_s: float
    children: int = 0
    hits: int = 0
    retention: RetentionTerm = NO_TERM
    twins: list[int] = field(default_factory=list)


class PrefixIndex:
    """Entries by key, by block and by head, twins by block, and which draft components each block holds.

    A component is a bit. It says of a *block* that the last writer of that group's slots in it made all of them,
    with the whole prefix in view; so it moves and vanishes with the block.

    Attributes:
        heads: All entries, and the live requests whose first unpublished block has committed tokens.
    """

    def __init__(self, num_blocks: int) -> None:
        self._by_key: dict[bytes, Entry] = {}
        self._by_block: dict[int, Entry] = {}
        self._by_twin: dict[int, Entry] = {}
        self.heads: HeadIndex[Any] = HeadIndex()
        self._components = [0] * num_blocks

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def entries(self) -> Iterable[Entry]:
        """All resident entries."""
        return self._by_key.values()

    @property
    def twins(self) -> dict[int, Entry]:
        """Blocks that hold the content of an entry without being its block."""
        return self._by_twin

    def get(self, key: bytes) -> Entry | None:
        """The entry of a key."""
        return self._by_key.get(key)

    def of_block(self, block_id: int) -> Entry | None:
        """The entry whose block this is."""
        return self._by_block.get(block_id)

    def insert(self, entry: Entry) -> None:
        """Make a key resident; its parent must be."""
        assert entry.key not in self._by_key and entry.block_id not in self._by_block
        if entry.parent is not None:
            assert self._by_key.get(entry.parent.key) is entry.parent, "the parent of a new entry is not resident"
            entry.parent.children += 1
        self._by_key[entry.key] = self._by_block[entry.block_id] = entry
        self.heads.put(entry.place, entry, entry.tokens)

    def remove(self, entry: Entry) -> None:
        """Forget a key that has neither children nor twins."""
        assert not entry.children and not entry.twins
        del self._by_key[entry.key], self._by_block[entry.block_id]
        self.heads.discard(entry.place, entry)
        if entry.parent is not None:
            entry.parent.children -= 1

    def add_twin(self, entry: Entry, block_id: int) -> None:
        """Note that a block in use holds the content of an entry."""
        entry.twins.append(block_id)
        self._by_twin[block_id] = entry

    def drop_twin(self, block_id: int) -> None:
        """Forget a twin; a block that is none is fine."""
        entry = self._by_twin.pop(block_id, None)
        if entry is not None:
            entry.twins.remove(block_id)

    def move_to_twin(self, entry: Entry) -> int:
        """Let the oldest twin be the entry's block; return the block that was it."""
        old_id, new_id = entry.block_id, entry.twins[0]
        self.drop_twin(new_id)
        del self._by_block[old_id]
        self._by_block[new_id] = entry
        entry.block_id = new_id
        return old_id

    def clear(self) -> None:
        """Forget all keys, twins and components."""
        self._by_key.clear()
        self._by_block.clear()
        self._by_twin.clear()
        self.heads.clear()
        self._components = [0] * len(self._components)

    def components(self, block_id: int) -> int:
        """Bit set of the components that a block holds."""
        return self._components[block_id]

    def add_component(self, block_id: int, bit: int) -> None:
        """Note that a block holds a component."""
        self._components[block_id] |= bit

    def drop_components(self, block_id: int, bits: int = -1) -> None:
        """Note that a block no longer holds these components."""
        self._components[block_id] &= ~bits
