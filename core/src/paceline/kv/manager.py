"""The manager: requests in, block tables out. Bookkeeping only; it never touches KV tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from paceline.api.eviction import EvictionPolicy
from paceline.api.facts import RequestFacts
from paceline.api.observers import KVEvent
from paceline.api.proposers import KVGroup
from paceline.kv.boundary import Boundary, no_boundary
from paceline.kv.cache import BlockCache, EventLog
from paceline.kv.components import DraftComponents
from paceline.kv.copies import PendingCopies, PendingCopy
from paceline.kv.eviction import EvictionDriver
from paceline.kv.identity import IdentityBuilder
from paceline.kv.matching import PrefixMatcher
from paceline.kv.publishing import Publisher
from paceline.kv.retention import NO_RETENTION, Retention
from paceline.kv.sequence import CacheStats, LiveSequence, PrefixHit
from paceline.kv.tables import BlockTables

__all__ = ["KVManager"]


class KVManager:
    """Block tables, prefix cache and draft ranges of all live requests, by request id.

    Queries (``can_*``, ``lookup``, properties) change nothing; an act cannot fail after its query said yes.

    Requests share full blocks only, and nobody writes into those. Where they part inside a block, the later one gets
    a copy of the block's matching head, before it first writes: it always does so in its next step.

    Args:
        num_blocks: Size of the pool.
        block_size: Tokens per block.
        groups: The draft groups; the target's needs no bookkeeping of its own.
        policy: Chooses which cached blocks are evicted.
        identity: Makes block keys.
        clock: Seconds.
        enable_prefix_caching: Whether blocks are published and found.
        max_seqs: Most live requests.
        max_blocks_per_seq: Longest block table.
        collect_events: Whether ``drain_events`` has anything to give.
        policy_name: The policy's name in messages; its class by default.
        policy_boundary: ``hook -> context`` in which the policy's code runs.

    Raises:
        KVGroupError: if a group's name is taken.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        groups: Sequence[KVGroup],
        policy: EvictionPolicy,
        identity: IdentityBuilder,
        clock: Callable[[], float],
        enable_prefix_caching: bool,
        max_seqs: int,
        max_blocks_per_seq: int,
        collect_events: bool = False,
        policy_name: str | None = None,
        policy_boundary: Boundary = no_boundary,
    ) -> None:
        driver = EvictionDriver(policy, policy_name or type(policy).__qualname__, block_size, policy_boundary)
        self.block_size = block_size
        self.stats = CacheStats()
        self._events = EventLog(collect_events)
        self.cache = BlockCache(num_blocks, driver, clock, self._events)
        self.tables = BlockTables(max_seqs, max_blocks_per_seq, block_size)
        self.components = DraftComponents(groups, self.tables, self.cache.index, max_seqs, block_size, num_blocks)
        self.copies = PendingCopies(self.cache)
        self.sequences: dict[str, LiveSequence] = {}
        self._enable_prefix_caching = enable_prefix_caching
        self._matcher = PrefixMatcher(self.cache, self.components, identity, block_size, enable_prefix_caching)
        self._publisher = Publisher(self.cache, block_size, offers_heads=not identity.has_block_fields)

    @property
    def num_total(self) -> int:
        """Blocks in the pool."""
        return self.cache.pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be had now: free, or cached and unused."""
        return self.cache.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that hold cached KV and that no request uses."""
        return self.cache.num_cached

    @property
    def num_used(self) -> int:
        """Blocks that requests use."""
        return self.num_total - self.num_free

    @property
    def capacity_tokens(self) -> int:
        """Longest sequence that can ever be held, alone."""
        return min(self.num_total, self.tables.max_blocks_per_seq) * self.block_size

    @property
    def block_tables(self) -> np.ndarray:
        """int32 ``[max_seqs, max_blocks_per_seq]``, one row a live request; unused entries are 0. Not to be written."""
        return self.tables.array

    def row(self, request_id: str) -> int:
        """Row of a live request in ``block_tables``."""
        return self.sequences[request_id].row

    def slots(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Slots int64 ``[n]`` of int64 ``positions [n]`` in table ``rows [n]``; each position must be reserved."""
        return self.tables.slots(rows, positions)

    def capacity(self, request_id: str) -> int:
        """Slots reserved for a live request."""
        return len(self.sequences[request_id].block_ids) * self.block_size

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Whether a sequence of this length fits when it is alone."""
        return num_tokens <= self.capacity_tokens

    def lookup(self, request: RequestFacts, tokens: np.ndarray, read_cache: bool = True) -> PrefixHit:
        """What the cache holds of ``tokens`` (int64, at least 1) for this request: full blocks, and the head of one."""
        return self._matcher.hit(self._matcher.match(request, tokens, read_cache), len(tokens))

    def can_admit(self, hit: PrefixHit, num_slots: int, num_spare_blocks: int = 0, without: Sequence[str] = ()) -> bool:
        """Whether the request of this lookup could be admitted now and reserve ``num_slots``.

        Args:
            hit: What ``lookup`` gave.
            num_slots: At least the tokens looked up.
            num_spare_blocks: Blocks that are to be left.
            without: Live requests: the answer is for when they have been released. It may be no where it would be yes.
        """
        num_blocks = max(self._blocks_for(num_slots), hit.num_blocks)
        num_taken = num_blocks - hit.num_blocks + hit.num_idle_blocks + max(num_spare_blocks, hit.num_idle_sources)
        held = Counter(block_id for name in without for block_id in self.sequences[name].block_ids)
        num_free = self.num_free + self.cache.num_freed(held, hit.block_ids)
        fits_table = num_blocks <= self.tables.max_blocks_per_seq
        return self.tables.num_free_rows + len(without) > 0 and fits_table and num_taken <= num_free

    def admit(
        self,
        request: RequestFacts,
        tokens: np.ndarray,
        read_cache: bool = True,
        retention: Retention = NO_RETENTION,
    ) -> PrefixHit:
        """Give the request a table row that begins with the blocks of ``lookup``'s hit, and hold them.

        If the hit ends inside a block, a copy is owed: ``take_copies`` must be called, once the tokens' slots are
        reserved, before anything is computed.

        Args:
            request: Whose identity it is.
            tokens: int64, all known tokens.
            read_cache: Without it there is no hit; what the request computes is published all the same.
            retention: What it asks of the cache for its blocks.
        """
        assert request.request_id not in self.sequences, f"request {request.request_id!r} is live already"
        match = self._matcher.match(request, tokens, read_cache)
        hit = self._matcher.hit(match, len(tokens), row=self.tables.take_row())
        assert hit.row is not None
        tail = match.entries[-1] if match.entries else None
        self.sequences[request.request_id] = LiveSequence.start(hit, match.chain, tail, retention)
        self.tables.write(hit.row, 0, hit.block_ids)
        self.components.start(hit.row, hit.components)
        self.cache.hold(match.entries)
        if match.partial is not None:
            self.copies.add(request.request_id, PendingCopy(match.partial.block_id, hit.num_blocks))
        self.stats.queries += len(tokens)
        self.stats.hits += hit.num_tokens
        return hit

    def take_copies(self) -> tuple[np.ndarray, np.ndarray]:
        """Blocks to be copied now, in all groups: sources and destinations, int64 ``[n]`` each.

        All sources must be read before any destination is written, and that before anything else is written.
        """
        owed = [(copy.source, self.sequences[name].block_ids[copy.depth]) for name, copy in self.copies.take().items()]
        pairs = np.array(owed, dtype=np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _blocks_for(self, num_slots: int) -> int:
        return -(-num_slots // self.block_size)

    def reservable_slots(self, request_id: str) -> int:
        """Most slots that a live request could have reserved now."""
        num_blocks = len(self.sequences[request_id].block_ids) + self.num_free
        return min(num_blocks, self.tables.max_blocks_per_seq) * self.block_size

    def can_reserve(self, request_id: str, num_slots: int) -> bool:
        """Whether ``reserve`` would succeed."""
        return num_slots <= self.reservable_slots(request_id)

    def reserve(self, request_id: str, num_slots: int) -> bool:
        """Grow the table to at least ``num_slots`` slots, evicting as needed; all or nothing.

        Raises:
            EvictionError: if the eviction policy answers wrongly; then the table is unchanged.
        """
        if not self.can_reserve(request_id, num_slots):
            return False
        sequence = self.sequences[request_id]
        old = len(sequence.block_ids)
        missing = self._blocks_for(num_slots) - old
        if missing > 0:
            sequence.block_ids += self.cache.take(missing)
            self.tables.write(sequence.row, old, sequence.block_ids[old:])
        return True

    def commit(self, request_id: str, tokens: np.ndarray, num_computed: int) -> None:
        """Target KV of ``tokens[:num_computed]`` (int64, all committed tokens) is true now: publish full blocks.

        Call ``clamp_drafts`` first when drafts were rejected. Each token is hashed once over a request's life. The
        array is kept: these tokens must not change while the request lives.
        """
        sequence = self.sequences[request_id]
        assert num_computed <= min(len(tokens), self.capacity(request_id)), f"{num_computed} of {len(tokens)} tokens"
        assert not len(self.copies), "something was computed before take_copies()"
        sequence.num_computed = max(sequence.num_computed, num_computed)
        if not (self._enable_prefix_caching and sequence.may_publish):
            return
        self._publisher.advance(sequence, tokens)
        self.components.mark(sequence.row, sequence.num_published)

    def rewind(self, request_id: str, num_slots: int) -> None:
        """Give back whole blocks beyond those needed for ``num_slots``; published blocks must be among the needed."""
        sequence = self.sequences[request_id]
        keep = self._blocks_for(num_slots)
        assert keep >= sequence.num_published, f"{request_id!r} cannot rewind into its published blocks"
        if keep >= len(sequence.block_ids):
            return
        dropped = sequence.block_ids[keep:]
        del sequence.block_ids[keep:]
        self.tables.cut(sequence.row, keep)
        self.components.clamp(sequence.row, keep * self.block_size)
        self.cache.drop(reversed(dropped))

    def release(self, request_id: str) -> None:
        """Drop a request's table: published blocks stay cached, others become free. Unknown ids are fine."""
        sequence = self.sequences.pop(request_id, None)
        if sequence is not None:
            self.copies.cancel(request_id)
            self._publisher.withdraw(sequence)
            self.components.release(sequence.row)
            self.tables.free_row(sequence.row)
            self.cache.drop(reversed(sequence.block_ids), sequence.retention)

    def reset(self) -> None:
        """Forget everything cached. Live requests go on, and publish nothing any more."""
        self.cache.reset()
        for sequence in self.sequences.values():
            sequence.may_publish, sequence.num_published = False, 0
            sequence.tail = sequence.place = None

    def draft_range(self, group: str, request_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Valid draft KV of live requests: ``first`` and ``computed`` (exclusive), int64 ``[n]`` each, copies."""
        ranges, rows = self.components.group(group), self._rows(request_ids)
        return ranges.first[rows], ranges.computed[rows]

    def report(self, group: str, request_ids: Sequence[str], first: np.ndarray, computed: np.ndarray) -> None:
        """Declare ``[first, computed)`` valid, int64 ``[n]`` each; an empty range may be followed by any.

        Raises:
            DraftRangeError: if a range is none, passes the reserved slots or does not continue the present one;
                then nothing is stored.
        """
        assert not len(self.copies), "something was computed before take_copies()"
        ranges, rows = self.components.group(group), self._rows(request_ids)
        capacity = self.draft_capacity(group, request_ids)
        ranges.check(rows, first, computed, capacity, request_ids)
        self.components.record(ranges, rows, first, computed)
        for request_id in request_ids:
            self.components.mark(self.row(request_id), self.sequences[request_id].num_published)

    def draft_capacity(self, group: str, request_ids: Sequence[str]) -> np.ndarray:
        """Slots reserved in a draft group for live requests, int64 ``[n]``."""
        if group in self.components.private:
            return self.components.private[group].capacity(self._rows(request_ids))
        return np.array([self.capacity(request_id) for request_id in request_ids], dtype=np.int64)

    def reserve_private(self, group: str, request_ids: Sequence[str], num_slots: np.ndarray) -> None:
        """Reserve slots int64 ``[n]`` of a private group, earlier requests first, while there are any."""
        self.components.private[group].reserve(self._rows(request_ids), num_slots)

    def clamp_drafts(self, request_id: str, num_tokens: int) -> None:
        """Take back draft KV beyond the first ``num_tokens`` positions, in all groups but private ones."""
        self.components.clamp(self.row(request_id), num_tokens)

    def drain_events(self) -> list[KVEvent]:
        """Changes of the prefix index since the last call, in order; empty unless events are collected."""
        return self._events.drain()

    def _rows(self, request_ids: Sequence[str]) -> np.ndarray:
        return np.array([self.sequences[request_id].row for request_id in request_ids], dtype=np.int64)
