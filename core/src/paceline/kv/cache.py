"""Blocks in use, cached and free: the pool, the prefix index and the eviction policy, kept in step.

Two requests that compute the same content at the same time each have a block of it. The first to finish is the
entry's block, the others are its *twins*: private to their requests, but known. When the entry's block loses its last
user while a twin is in use, the key moves to the twin. Hence the two facts that all accounting rests on:

* while a request holds a block of some content, that content's key is resident (so its children may be published);
* an entry that no request uses has no twin and no descendant in use (so every cached block can be had by evicting).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import numpy as np

from paceline.api.observers import KVEvent, KVEventKind
from paceline.kv.eviction import EvictionDriver
from paceline.kv.heads import Place
from paceline.kv.index import Entry, PrefixIndex
from paceline.kv.pool import BlockPool
from paceline.kv.retention import NO_RETENTION, Retention, RetentionTerm

__all__ = ["BlockCache", "EventLog"]


class EventLog:
    """Changes of the index since it was last read; does nothing when nobody listens."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._items: list[tuple[KVEventKind, list[int], list[bytes]]] = []

    def add(self, kind: KVEventKind, block_ids: Sequence[int], keys: Sequence[bytes]) -> None:
        """Append to the last event if it is of the same kind."""
        if not self._enabled or not block_ids:
            return
        if not self._items or self._items[-1][0] is not kind:
            self._items.append((kind, [], []))
        self._items[-1][1].extend(block_ids)
        self._items[-1][2].extend(keys)

    def drain(self) -> list[KVEvent]:
        """Return the events in order, and forget them."""
        items, self._items = self._items, []
        return [KVEvent(kind=kind, block_ids=tuple(ids), keys=tuple(keys)) for kind, ids, keys in items]


class BlockCache:
    """Owner of the blocks. Callers hold references to blocks; what nobody holds is cached or free.

    Args:
        num_blocks: Size of the pool.
        driver: The eviction policy's driver.
        clock: Seconds.
        events: Where changes of the index go.
    """

    def __init__(self, num_blocks: int, driver: EvictionDriver, clock: Callable[[], float], events: EventLog) -> None:
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex(num_blocks)
        self.driver = driver
        self.num_cached = 0
        self._clock = clock
        self._events = events

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now: the free ones and, by evicting, the cached ones."""
        return self.pool.num_free + self.num_cached

    def num_freed(self, held: Mapping[int, int], kept: Container[int]) -> int:
        """Blocks, but for those ``kept``, that nobody would use if so many references to each were given up."""
        return sum(self.pool.refs(block_id) == count for block_id, count in held.items() if block_id not in kept)

    def take(self, count: int) -> list[int]:
        """Take ``count`` blocks that hold nothing, evicting as needed; at most ``num_free``.

        Raises:
            EvictionError: if the policy's answer is wrong; then nothing is taken.
        """
        assert count <= self.num_free, f"{count} blocks asked for, {self.num_free} to be had"
        missing = count - self.pool.num_free
        while missing > 0:
            missing -= self._evict(missing)
        return self.pool.take(count)

    def _evict(self, count: int) -> int:
        entries = [self._entry(block_id) for block_id in self.driver.victims(count)]
        block_ids = [entry.block_id for entry in entries]
        for entry in entries:
            self.index.remove(entry)
            self._free(entry.block_id)
        self.num_cached -= len(entries)
        self.driver.removed(block_ids)
        self._events.add(KVEventKind.REMOVED, block_ids, [entry.key for entry in entries])
        parents = {id(entry.parent): entry.parent for entry in entries if entry.parent is not None}
        self.driver.offer([parent for parent in parents.values() if self._is_evictable(parent)])
        return len(entries)

    def hold(self, entries: Sequence[Entry]) -> None:
        """Take a reference to the blocks of a prefix hit."""
        now_s = self._clock()
        for entry in entries:
            self.num_cached -= self.is_idle(entry)
            entry.hits += 1
            entry.last_use_s = now_s
        block_ids = [entry.block_id for entry in entries]
        self.pool.ref(block_ids)
        self.driver.withdraw(block_ids)
        self.driver.touched(entries)

    def pin(self, block_id: int) -> None:
        """Take a reference to a block of which a part is used; ``drop`` gives it up."""
        entry = self.index.of_block(block_id)
        if entry is None:
            self.pool.ref([block_id])
        else:
            self.hold([entry])

    def drop(self, block_ids: Iterable[int], retention: Retention = NO_RETENTION) -> None:
        """Give up references, deepest block first. What is published and no longer used becomes cached.

        Args:
            block_ids: The blocks; may be an iterator.
            retention: What their user asks for those that are published.
        """
        now_s = self._clock()
        if retention.priority:
            block_ids = list(block_ids)
            self._retain(block_ids, retention.term(now_s), now_s)
        evictable = []
        for block_id in block_ids:
            if self.pool.unref(block_id):
                continue
            entry = self.index.of_block(block_id)
            if entry is None:
                self.index.drop_twin(block_id)
                self._free(block_id)
            elif entry.twins:
                self._move_to_twin(entry)
            else:
                entry.last_use_s = now_s
                self.num_cached += 1
                if self._is_evictable(entry):
                    evictable.append(entry)
        self.driver.offer(evictable)

    def _retain(self, block_ids: Sequence[int], term: RetentionTerm, now_s: float) -> None:
        for block_id in block_ids:
            entry = self.index.of_block(block_id) or self.index.twins.get(block_id)
            if entry is not None:
                entry.retention = entry.retention.merged(term, now_s)

    def publish(
        self, block_id: int, key: bytes, parent: Entry | None, place: Place, tokens: np.ndarray, trust_domain: str
    ) -> Entry:
        """Make the content of a full block in use known; return the entry of its key.

        If the key is resident already, the block becomes a twin; if nobody uses the resident block, it takes over.
        """
        entry = self.index.get(key)
        if entry is not None:
            self.index.add_twin(entry, block_id)
            if self.is_idle(entry):
                self.num_cached -= 1
                self.driver.removed([self._move_to_twin(entry)])
            return entry
        now_s = self._clock()
        depth = 0 if parent is None else parent.depth + 1
        entry = Entry(key, parent, place, tokens.copy(), depth, block_id, trust_domain, now_s, now_s)
        self.index.insert(entry)
        self._events.add(KVEventKind.STORED, [block_id], [key])
        return entry

    def reset(self) -> None:
        """Free every cached block and forget every key, those of blocks in use included."""
        entries = list(self.index.entries)
        self.driver.removed(list(self.driver.evictable))
        for entry in entries:
            if self.is_idle(entry):
                self.pool.free(entry.block_id)
        self.index.clear()
        self.num_cached = 0
        self._events.add(KVEventKind.CLEARED, [e.block_id for e in entries], [e.key for e in entries])

    def is_idle(self, entry: Entry) -> bool:
        """Whether no request uses the entry's block."""
        return self.pool.refs(entry.block_id) == 0

    def _is_evictable(self, entry: Entry) -> bool:
        return not entry.children and self.is_idle(entry)

    def _entry(self, block_id: int) -> Entry:
        entry = self.index.of_block(block_id)
        assert entry is not None
        return entry

    def _move_to_twin(self, entry: Entry) -> int:
        old_id = self.index.move_to_twin(entry)
        self._free(old_id)
        self._events.add(KVEventKind.REMOVED, [old_id], [entry.key])
        self._events.add(KVEventKind.STORED, [entry.block_id], [entry.key])
        return old_id

    def _free(self, block_id: int) -> None:
        self.index.drop_components(block_id)
        self.pool.free(block_id)
