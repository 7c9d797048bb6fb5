from __future__ import annotations

import numpy as np
import pytest

from paceline.api import KVEventKind
from paceline.kv.invariants import check


def _start(manager, request, tokens, num_computed=None):
    hit = manager.admit(request, tokens)
    assert manager.reserve(request.request_id, len(tokens))
    manager.take_copies()
    manager.commit(request.request_id, tokens, len(tokens) if num_computed is None else num_computed)
    check(manager)
    return hit


def _table(manager, request_id):
    return manager.block_tables[manager.row(request_id), : manager.capacity(request_id) // manager.block_size].tolist()


def test_lookup_and_admit_agree_and_lookup_changes_nothing(make_manager, facts):
    manager = make_manager(collect_events=True)
    _start(manager, facts("a"), np.arange(10))
    manager.drain_events()
    before = (manager.num_free, manager.num_cached, manager.stats.queries, manager.block_tables.copy().tolist())
    found = manager.lookup(facts("b"), np.arange(12))
    after = (manager.num_free, manager.num_cached, manager.stats.queries, manager.block_tables.tolist())
    assert before == after
    assert (found.num_tokens, found.num_blocks, found.num_idle_blocks, found.row) == (10, 2, 0, None)
    admitted = manager.admit(facts("b"), np.arange(12))
    assert (admitted.num_tokens, admitted.num_blocks, admitted.num_copied_tokens) == (10, 2, 2)
    assert admitted.row == manager.row("b")
    assert _table(manager, "b") == _table(manager, "a")[:2]
    assert manager.drain_events() == []


def test_tables_slots_and_growth(make_manager, facts):
    manager = make_manager(max_blocks_per_seq=3)
    manager.admit(facts("a"), np.arange(3))
    assert manager.reserve("a", 5)
    assert manager.capacity("a") == 8
    assert manager.reserve("a", 8)
    assert len(_table(manager, "a")) == 2
    table = _table(manager, "a")
    rows = np.array([manager.row("a")] * 3)
    slots = manager.slots(rows, np.array([0, 3, 5]))
    assert slots.tolist() == [table[0] * 4, table[0] * 4 + 3, table[1] * 4 + 1]
    assert slots.dtype == np.int64
    assert manager.reservable_slots("a") == 12
    assert not manager.can_reserve("a", 13)
    assert not manager.reserve("a", 13)
    assert manager.block_tables.dtype == np.int32
    manager.release("a")
    assert not manager.block_tables.any()


def test_reserve_is_all_or_nothing(make_manager, facts):
    manager = make_manager(num_blocks=4)
    _start(manager, facts("a"), np.arange(8))
    manager.admit(facts("b"), np.arange(50, 53))
    assert manager.reservable_slots("b") == 8
    assert not manager.reserve("b", 9)
    assert (manager.capacity("b"), manager.num_free) == (0, 2)
    assert manager.reserve("b", 8)
    assert manager.num_used == manager.num_total == 4
    assert not manager.can_reserve("a", 9)


def test_what_can_never_fit_is_told(make_manager):
    assert make_manager(num_blocks=3).capacity_tokens == 12
    assert make_manager(max_blocks_per_seq=2).capacity_tokens == 8
    manager = make_manager(num_blocks=3)
    assert manager.can_ever_fit(12)
    assert not manager.can_ever_fit(13)


def test_can_admit_counts_the_blocks_that_the_hit_takes_from_the_cache(make_manager, facts, run):
    manager = make_manager(num_blocks=4, max_seqs=1)
    tokens = np.arange(20)
    run(manager, facts("a"), tokens[:12])
    hit = manager.lookup(facts("b"), tokens[:16])
    assert (hit.num_idle_blocks, manager.num_free) == (3, 4)
    assert manager.can_admit(hit, 16)
    assert not manager.can_admit(hit, 17)
    assert manager.can_admit(hit, 12, num_spare_blocks=1)
    assert not manager.can_admit(hit, 12, num_spare_blocks=2)
    manager.admit(facts("b"), tokens[:16])
    assert manager.reserve("b", 16)
    assert not manager.can_admit(manager.lookup(facts("c"), tokens[:4]), 0), "no row is left"


def test_full_blocks_are_published_as_they_fill(make_manager, facts):
    manager = make_manager(collect_events=True)
    tokens = np.arange(20)
    manager.admit(facts("a"), tokens[:3])
    manager.reserve("a", 20)
    found = []
    for num_computed in range(1, 21):
        manager.commit("a", tokens[:num_computed], num_computed)
        found.append(manager.lookup(facts("b"), np.append(tokens, 0)))
        check(manager)
    assert [hit.num_blocks for hit in found] == [n // 4 for n in range(1, 21)]
    assert [hit.num_tokens for hit in found] == list(range(1, 21)), "what is in a block that is not full is copied"
    [event] = manager.drain_events()
    assert (event.kind, list(event.block_ids)) == (KVEventKind.STORED, _table(manager, "a"))
    assert manager.drain_events() == []


def test_only_what_is_computed_is_published(make_manager, facts):
    manager = make_manager()
    _start(manager, facts("a"), np.arange(16), num_computed=7)
    hit = manager.lookup(facts("b"), np.arange(16))
    assert (hit.num_blocks, hit.num_tokens) == (1, 7)


def test_hashing_is_once_per_block_over_a_life(make_manager, facts, monkeypatch):
    manager = make_manager(num_blocks=64, max_blocks_per_seq=64)
    calls = []
    key = manager._matcher._identity.key
    monkeypatch.setattr(manager._matcher._identity, "key", lambda *args: calls.append(args[3]) or key(*args))
    tokens, request = np.arange(200), facts("a")
    for _ in range(50):
        manager.lookup(request, tokens[:100])
    manager.admit(request, tokens[:100])
    for length in range(1, 201):
        manager.reserve("a", length)
        manager.commit("a", tokens[: max(length, 100)], length)
    assert calls == list(range(0, 200, 4))


def test_a_waiting_request_whose_tokens_change_is_hashed_anew(make_manager, facts, run):
    manager = make_manager()
    run(manager, facts("a"), np.arange(8))
    request, tokens = facts("b"), np.arange(9)
    assert manager.lookup(request, tokens).num_tokens == 8
    tokens[5] = 77
    hit = manager.lookup(request, tokens)
    assert (hit.num_blocks, hit.num_tokens) == (1, 5)
    assert manager.lookup(facts("b", cache_salt="s"), tokens).num_tokens == 0


def test_release_keeps_what_is_published_and_frees_the_rest(make_manager, facts):
    manager = make_manager()
    _start(manager, facts("a"), np.arange(10))
    manager.release("a")
    manager.release("a")
    manager.release("never seen")
    assert (manager.num_cached, manager.num_used, manager.num_free) == (2, 0, 12)
    assert manager.lookup(facts("b"), np.arange(10)).num_tokens == 8


def test_rewind_gives_back_whole_blocks(make_manager, facts):
    manager = make_manager()
    _start(manager, facts("a"), np.arange(6))
    manager.reserve("a", 20)
    manager.rewind("a", 7)
    check(manager)
    assert (manager.capacity("a"), manager.num_used) == (8, 2)
    with pytest.raises(AssertionError, match="cannot rewind into its published blocks"):
        manager.rewind("a", 0)


def test_eviction_takes_the_end_of_the_oldest_chain_first(make_manager, facts, run):
    manager = make_manager(num_blocks=6)
    run(manager, facts("old"), np.arange(12))
    run(manager, facts("new"), np.arange(50, 62))
    manager.admit(facts("c"), np.arange(90, 94))
    manager.reserve("c", 4)
    assert manager.lookup(facts("x"), np.arange(13)).num_tokens == 8
    assert manager.lookup(facts("x"), np.arange(50, 63)).num_tokens == 12


def test_caching_can_be_off(make_manager, facts, run, group):
    manager = make_manager(enable_prefix_caching=False, groups=[group()], collect_events=True)
    assert [run(manager, facts(), np.arange(16)) for _ in range(2)] == [0, 0]
    assert (manager.num_cached, len(manager.cache.index), manager.drain_events()) == (0, 0, [])


def test_reset_forgets_and_live_requests_publish_nothing_more(make_manager, facts, run):
    manager = make_manager(collect_events=True)
    run(manager, facts("a"), np.arange(50, 58))
    _start(manager, facts("b"), np.arange(8))
    manager.drain_events()
    manager.reset()
    check(manager)
    [cleared] = manager.drain_events()
    assert (cleared.kind, len(cleared.block_ids)) == (KVEventKind.CLEARED, 4)
    assert (manager.num_cached, manager.num_used) == (0, 2)
    manager.reserve("b", 16)
    manager.commit("b", np.arange(16), 16)
    assert manager.lookup(facts("c"), np.arange(17)).num_tokens == 0
    run(manager, facts("d"), np.arange(8))
    manager.commit("b", np.arange(16), 16)
    manager.release("b")
    check(manager)
    assert manager.lookup(facts("c"), np.arange(17)).num_tokens == 8


def test_statistics_count_tokens_of_admissions(make_manager, facts, run):
    manager = make_manager()
    run(manager, facts(), np.arange(10))
    run(manager, facts(), np.arange(10))
    manager.lookup(facts(), np.arange(10))
    assert (manager.stats.queries, manager.stats.hits) == (20, 8)


def test_a_twin_takes_over_when_the_published_block_loses_its_user(make_manager, facts):
    manager = make_manager(collect_events=True)
    tokens = np.arange(12)
    manager.admit(facts("a"), tokens[:8])
    manager.admit(facts("b"), tokens)
    for name, length in (("a", 8), ("b", 12)):
        manager.reserve(name, length)
        manager.commit(name, tokens[:length], length)
        check(manager)
    table_a, table_b = _table(manager, "a"), _table(manager, "b")
    assert not set(table_a) & set(table_b), "concurrent equals are not merged"
    assert manager.admit(facts("c"), tokens).num_tokens == 11
    assert _table(manager, "c") == [*table_a, table_b[2]], "a child of a twin hangs on the key"
    manager.release("c")
    assert manager.num_used == 5
    manager.drain_events()
    manager.release("a")
    check(manager)
    assert (manager.num_used, manager.num_cached) == (3, 0), "the twins hold the keys, the other blocks are free"
    assert {kind.kind for kind in manager.drain_events()} == {KVEventKind.REMOVED, KVEventKind.STORED}
    manager.admit(facts("d"), tokens)
    assert _table(manager, "d") == table_b


def test_a_twin_takes_over_from_a_cached_block(make_manager, facts):
    manager = make_manager()
    tokens = np.arange(12)
    manager.admit(facts("late"), tokens)
    manager.reserve("late", 12)
    _start(manager, facts("a"), tokens)
    manager.release("a")
    assert manager.num_cached == 3
    manager.commit("late", tokens, 8)
    check(manager)
    assert (manager.num_used, manager.num_cached) == (3, 1)
    manager.release("late")
    check(manager)
    assert (manager.num_used, manager.num_cached) == (0, 3)
    assert manager.lookup(facts("b"), np.arange(13)).num_tokens == 12


def test_a_twin_is_forgotten_with_its_request(make_manager, facts):
    manager = make_manager()
    _start(manager, facts("a"), np.arange(4))
    for name in ("b", "c"):
        manager.admit(facts(name, cache_salt=""), np.arange(3))
        manager.reserve(name, 4)
        manager.take_copies()
        manager.commit(name, np.arange(4), 4)
        check(manager)
    manager.release("b")
    check(manager)
    manager.release("a")
    check(manager)
    assert manager.num_used == 1
    manager.release("c")
    assert (manager.num_used, manager.num_cached) == (0, 1)


def test_a_lone_request_can_always_have_the_whole_pool(make_manager, facts):
    manager = make_manager(num_blocks=8)
    tokens = np.arange(32)
    for name in ("a", "b"):
        manager.admit(facts(name), tokens[:3])
        manager.reserve(name, 16)
    for name in ("a", "b"):
        manager.commit(name, tokens[:16], 16)
    assert not manager.can_reserve("b", 17)
    manager.release("a")
    assert manager.reservable_slots("b") == manager.capacity_tokens == 32
    assert manager.reserve("b", 32)
    manager.commit("b", tokens, 32)
    check(manager)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: m.cache.pool.ref([m.sequences["a"].block_ids[0]]), "has 2 references, 1 tables hold it"),
        (lambda m: m.cache.pool._free.append(m.cache.pool._free[0]), "free twice"),
        (lambda m: m.cache.pool._free.pop(), "is not all"),
        (lambda m: setattr(m.cache, "num_cached", 1), "1 blocks counted as cached, 2 are"),
        (lambda m: m.cache.driver.evictable.clear(), "the policy was told"),
        (lambda m: setattr(next(iter(m.cache.index.entries)), "children", 7), "counts 7 children"),
        (lambda m: m.cache.index._by_block.clear(), "does not point to its entry"),
        (lambda m: m.cache.index.add_component(m.cache.pool.free_ids[0], 1), "still has draft components"),
        (lambda m: m.block_tables.fill(3), "the table of 'a'"),
        (lambda m: m.components.ranges["draft"].computed.fill(99), "out of bounds"),
        (lambda m: m.sequences["a"].tail.twins.append(11), "does not point to its entry"),
        (lambda m: m.tables._free_rows.pop(), "rows are lost"),
    ],
    ids=range(12),
)
def test_the_invariants_can_fail(make_manager, facts, group, damage, message):
    manager = make_manager(groups=[group()])
    _start(manager, facts("a"), np.arange(6))
    _start(manager, facts("b"), np.arange(50, 58))
    manager.release("b")
    damage(manager)
    with pytest.raises(AssertionError, match=message):
        check(manager)
