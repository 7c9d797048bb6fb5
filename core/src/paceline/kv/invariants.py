"""What must hold of a manager between any two calls: the executable specification of the KV cache."""

from __future__ import annotations

from collections import Counter

import numpy as np

from paceline.kv.manager import KVManager
from paceline.kv.sequence import LiveSequence

__all__ = ["check"]


def check(manager: KVManager) -> None:
    """Check every invariant; O(blocks).

    Raises:
        AssertionError: naming the first that does not hold.
    """
    _check_references(manager)
    _check_accounts(manager)
    _check_entries(manager)
    _check_chains(manager)
    _check_evictable(manager)
    _check_copies(manager)
    _check_private(manager)
    _check_heads(manager)
    for request_id, sequence in manager.sequences.items():
        _check_sequence(manager, request_id, sequence)
    _check_ranges(manager)


def _check_references(manager: KVManager) -> None:
    held, pins = _num_holders(manager), Counter(manager.copies.sources)
    for block_id in range(manager.num_total):
        refs = manager.cache.pool.refs(block_id)
        whose = f"{held[block_id]} tables hold it and {pins[block_id]} copies pin it"
        assert refs == held[block_id] + pins[block_id], f"block {block_id} has {refs} references, {whose}"


def _num_holders(manager: KVManager) -> Counter[int]:
    return Counter(block_id for sequence in manager.sequences.values() for block_id in sequence.block_ids)


def _check_accounts(manager: KVManager) -> None:
    pool, index = manager.cache.pool, manager.cache.index
    free = Counter(pool.free_ids)
    assert max(free.values(), default=1) == 1, f"blocks free twice: {[b for b, n in free.items() if n > 1]}"
    used = sum(pool.refs(block_id) > 0 for block_id in range(pool.num_blocks))
    cached = sum(manager.cache.is_idle(entry) for entry in index.entries)
    assert manager.num_cached == cached, f"{manager.num_cached} blocks counted as cached, {cached} are"
    assert len(free) + cached + used == pool.num_blocks, f"{len(free)} free + {cached} cached + {used} used is not all"
    for block_id in free:
        assert pool.refs(block_id) == 0, f"free block {block_id} is in use"
        assert index.of_block(block_id) is None, f"free block {block_id} is still published"
        assert block_id not in index.twins, f"free block {block_id} is still a twin"
        assert index.components(block_id) == 0, f"free block {block_id} still has draft components"


def _check_entries(manager: KVManager) -> None:
    cache, index = manager.cache, manager.cache.index
    assert len(index) <= manager.num_total, f"{len(index)} keys for {manager.num_total} blocks"
    for entry in index.entries:
        assert index.get(entry.key) is entry, f"key of block {entry.block_id} finds another entry"
        assert index.of_block(entry.block_id) is entry, f"block {entry.block_id} does not point to its entry"
        for block_id in entry.twins:
            assert index.twins.get(block_id) is entry, f"twin {block_id} does not point to its entry"
            assert cache.pool.refs(block_id) > 0, f"twin {block_id} is not in use"
            assert not cache.is_idle(entry), f"block {entry.block_id} is idle although twin {block_id} is in use"
    assert len(index.twins) == sum(len(entry.twins) for entry in index.entries), "twins of entries that are gone"


def _check_chains(manager: KVManager) -> None:
    cache = manager.cache
    children = Counter(entry.parent.key for entry in cache.index.entries if entry.parent is not None)
    for entry in cache.index.entries:
        parent = entry.parent
        counted = children[entry.key]
        assert entry.children == counted, f"block {entry.block_id} counts {entry.children} children, has {counted}"
        if parent is None:
            assert entry.depth == 0, f"block {entry.block_id} at depth {entry.depth} has no parent"
            continue
        assert cache.index.get(parent.key) is parent, f"the parent of block {entry.block_id} is not resident"
        assert entry.depth == parent.depth + 1, f"block {entry.block_id} is not one deeper than its parent"
        assert cache.is_idle(entry) or not cache.is_idle(parent), f"block {entry.block_id} is used, its parent idle"


def _check_evictable(manager: KVManager) -> None:
    cache = manager.cache
    evictable = {entry.block_id for entry in cache.index.entries if not entry.children and cache.is_idle(entry)}
    told = cache.driver.evictable
    assert told == evictable, f"the policy was told {sorted(told)}, evictable are {sorted(evictable)}"


def _check_copies(manager: KVManager) -> None:
    """Who is owed a copy lives, and the copy goes into its first block that is not full."""
    for request_id, copy in manager.copies.items():
        assert request_id in manager.sequences, f"{request_id!r} is owed a copy and is not live"
        sequence = manager.sequences[request_id]
        assert copy.depth == sequence.num_computed // manager.block_size, f"{request_id!r} is owed a copy elsewhere"
        assert copy.source not in sequence.block_ids, f"{request_id!r} is owed a copy of its own block {copy.source}"


def _check_heads(manager: KVManager) -> None:
    """Heads lead to the resident entries, and to the live requests that have begun a block; to nothing else."""
    offering = [sequence for sequence in manager.sequences.values() if sequence.place is not None]
    wanted = {*((entry.place, entry) for entry in manager.cache.index.entries), *((s.place, s) for s in offering)}
    found = {(place, owner) for place, owner, _ in manager.cache.index.heads}
    assert found == wanted, f"{len(found)} heads are found, {len(wanted)} blocks have one"
    for sequence in offering:
        num_tokens = sequence.num_computed - sequence.num_published * manager.block_size
        assert 0 < num_tokens < manager.block_size, f"a request offers {num_tokens} tokens of a block"
        assert sequence.may_publish, "a request offers KV from before a reset"


def _check_private(manager: KVManager) -> None:
    """What is still written into belongs to one request, and is found by no key."""
    held, index = _num_holders(manager), manager.cache.index
    for request_id, sequence in manager.sequences.items():
        for block_id in sequence.block_ids[sequence.num_computed // manager.block_size :]:
            assert held[block_id] == 1, f"{request_id!r} writes into block {block_id}, which others hold"
            is_known = index.of_block(block_id) is not None or block_id in index.twins
            assert not is_known, f"{request_id!r} writes into block {block_id}, which is published"


def _check_sequence(manager: KVManager, request_id: str, sequence: LiveSequence) -> None:
    index, row = manager.cache.index, manager.block_tables[sequence.row]
    num_blocks = len(sequence.block_ids)
    assert row[:num_blocks].tolist() == sequence.block_ids, f"the table of {request_id!r} is not what it holds"
    assert not row[num_blocks:].any(), f"the table of {request_id!r} has blocks that it does not hold"
    assert sequence.num_published <= num_blocks, f"{request_id!r} published more blocks than it holds"
    entry = sequence.tail
    for depth in range(sequence.num_published - 1, -1, -1):
        assert entry is not None and index.get(entry.key) is entry, f"key {depth} of {request_id!r} is not resident"
        block_id = sequence.block_ids[depth]
        known = index.of_block(block_id) is entry or index.twins.get(block_id) is entry
        assert known, f"block {block_id} of {request_id!r} does not hold what its key says"
        entry = entry.parent
    assert entry is None, f"the chain of {request_id!r} is longer than what it published"


def _check_ranges(manager: KVManager) -> None:
    rows = [sequence.row for sequence in manager.sequences.values()]
    assert len(set(rows)) == len(rows), "two requests have one row"
    assert len(rows) + manager.tables.num_free_rows == len(manager.block_tables), "rows are lost"
    capacity = np.array([manager.capacity(request_id) for request_id in manager.sequences], dtype=np.int64)
    for group, ranges in manager.components.ranges.items():
        first, computed = ranges.first[rows], ranges.computed[rows]
        valid = (first >= 0) & (first <= computed) & (computed <= capacity)
        assert valid.all(), f'draft ranges of "{group}" are out of bounds: {first} to {computed} of {capacity}'
    for group, slots in manager.components.private.items():
        held = [block_id for block_ids in slots.block_ids for block_id in block_ids]
        all_ids = sorted([*held, *slots.pool.free_ids])
        assert all_ids == list(range(slots.pool.num_blocks)), f'blocks of private group "{group}" are lost or shared'
        live = sum(len(slots.block_ids[row]) for row in rows)
        assert live == len(held), f'private group "{group}" holds blocks for requests that are gone'
        beyond = slots.ranges.computed[rows] > slots.capacity(np.array(rows, dtype=np.int64))
        assert not beyond.any(), f'ranges of private group "{group}" pass their slots'
