"""Blocks shared in part: who gives, who gets, and what holds until the copy is made."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.api import IdentityContributor
from paceline.kv.heads import HeadIndex
from paceline.kv.invariants import check


def start(manager, request, tokens, num_computed=None):
    hit = manager.admit(request, np.array(tokens))
    assert manager.reserve(request.request_id, len(tokens))
    check(manager)
    pairs = copies(manager)
    manager.commit(request.request_id, np.array(tokens), len(tokens) if num_computed is None else num_computed)
    check(manager)
    return hit, pairs


def copies(manager):
    sources, destinations = manager.take_copies()
    check(manager)
    return list(zip(sources.tolist(), destinations.tolist(), strict=True))


def table(manager, request_id):
    return manager.sequences[request_id].block_ids


def test_the_head_of_a_cached_block_is_copied(make_manager, facts, run):
    manager = make_manager()
    run(manager, facts("a"), np.arange(8))
    hit, [(source, destination)] = start(manager, facts("b"), [0, 1, 2, 3, 4, 5, 90, 91, 92])
    assert (hit.num_tokens, hit.num_kv_tokens, hit.num_blocks, hit.num_copied_tokens) == (6, 6, 1, 2)
    assert hit.num_idle_sources == 1
    assert manager.cache.index.of_block(source).tokens.tolist() == [4, 5, 6, 7]
    assert destination == table(manager, "b")[1] != source
    assert manager.stats.hits == 6


def test_the_longest_head_is_taken(make_manager, facts, run):
    manager = make_manager()
    for tokens in ([0, 1, 8, 8], [0, 1, 2, 8], [0, 9, 9, 9]):
        run(manager, facts("a"), np.array(tokens))
    hit, [(source, _)] = start(manager, facts("b"), [0, 1, 2, 3])
    assert hit.num_tokens == 3
    assert manager.cache.index.of_block(source).tokens.tolist() == [0, 1, 2, 8]


@pytest.mark.parametrize("other", [{"cache_salt": "s"}, {"trust_domain": "d"}])
def test_heads_are_apart_as_whole_blocks_are(make_manager, facts, run, other):
    manager = make_manager()
    run(manager, facts("a"), np.arange(8))
    assert manager.lookup(facts("b", **other), np.array([0, 1, 2, 9])).num_tokens == 0
    assert manager.lookup(facts("b"), np.array([4, 5, 6, 7])).num_tokens == 0, "another block before it"
    assert manager.lookup(facts("b"), np.array([0, 1, 2, 9]), read_cache=False).num_tokens == 0


class Media(IdentityContributor):
    def block_fields(self, request, tokens, start):
        return {"hash": request.metadata["hash"]}


def test_blocks_with_fields_of_their_own_are_shared_whole_only(make_manager, facts, run):
    manager = make_manager(contributors=[("media", Media())])
    run(manager, facts("a", metadata={"hash": 1}), np.arange(8))
    assert manager.lookup(facts("b", metadata={"hash": 1}), np.arange(8)).num_tokens == 7
    assert manager.lookup(facts("b", metadata={"hash": 1}), np.arange(7)).num_tokens == 4
    assert manager.lookup(facts("b", metadata={"hash": 2}), np.arange(8)).num_tokens == 0


def test_a_live_request_gives_what_it_has_computed_of_its_last_block(make_manager, facts):
    manager = make_manager()
    start(manager, facts("first"), range(7), num_computed=6)
    tail = table(manager, "first")[1]
    hit, pairs = start(manager, facts("second"), [*range(7), 50])
    assert (hit.num_blocks, hit.num_kv_tokens, hit.num_idle_sources) == (1, 6, 0)
    assert pairs == [(tail, table(manager, "second")[1])]
    assert table(manager, "second")[0] == table(manager, "first")[0], "full blocks are shared, not copied"
    manager.release("first")
    check(manager)
    hit, [(source, _)] = start(manager, facts("third"), [*range(6), 60])
    assert (hit.num_kv_tokens, source) == (6, table(manager, "second")[1]), "what was copied can be copied again"


def test_a_prompt_wholly_in_a_live_block_computes_its_last_token_only(make_manager, facts):
    manager = make_manager()
    start(manager, facts("first"), range(7))
    hit, _ = start(manager, facts("second"), range(6))
    assert (hit.num_tokens, hit.num_kv_tokens) == (5, 6)


def test_a_source_is_pinned_until_it_is_copied(make_manager, facts):
    manager = make_manager(num_blocks=6)
    start(manager, facts("first"), range(3))
    [source] = table(manager, "first")
    manager.admit(facts("second"), np.array([0, 1, 9]))
    manager.reserve("second", 3)
    manager.release("first")
    check(manager)
    assert manager.num_used == 2
    assert source not in manager.cache.pool.free_ids
    assert copies(manager) == [(source, table(manager, "second")[0])]
    assert (manager.num_used, source in manager.cache.pool.free_ids) == (1, True)


def test_a_pinned_source_is_not_evicted(make_manager, facts, run):
    manager = make_manager(num_blocks=4)
    run(manager, facts("a"), np.arange(8))
    manager.admit(facts("b"), np.array([0, 1, 2, 3, 4, 5, 99]))
    assert manager.reservable_slots("b") == 12, "one of four blocks is the source"
    assert manager.reserve("b", 12)
    [(source, destination)] = copies(manager)
    assert manager.cache.index.of_block(source).tokens.tolist() == [4, 5, 6, 7]
    assert destination == table(manager, "b")[1]
    assert manager.reserve("b", 16), "once copied, it can be evicted"


def test_a_copy_never_keeps_a_request_out(make_manager, facts, run):
    manager = make_manager(num_blocks=4)
    run(manager, facts("a"), np.arange(8))
    tokens = np.array([0, 1, 2, 3, 4, 5, *range(90, 100)])
    hit = manager.lookup(facts("b"), tokens)
    assert (hit.num_tokens, hit.num_copied_tokens) == (4, 0), "all four blocks are needed, the source's too"
    assert manager.can_admit(hit, 16)
    start(manager, facts("b"), tokens)


@pytest.mark.parametrize("take", [False, True])
def test_who_is_released_before_the_copy_lets_go_of_the_source(make_manager, facts, run, take):
    manager = make_manager()
    run(manager, facts("a"), np.arange(8))
    manager.admit(facts("b"), np.array([0, 1, 2, 3, 4, 99]))
    manager.reserve("b", 6)
    check(manager)
    assert (manager.num_used, manager.num_cached) == (3, 0)
    if take:
        assert len(copies(manager)) == 1
    manager.release("b")
    check(manager)
    assert copies(manager) == []
    assert (manager.num_used, manager.num_cached) == (0, 2)


def test_nothing_may_be_computed_before_the_copies(make_manager, facts, group, run):
    manager = make_manager(groups=[group()])
    run(manager, facts("a"), np.arange(8))
    manager.admit(facts("b"), np.array([0, 1, 9]))
    manager.reserve("b", 3)
    with pytest.raises(AssertionError, match="before take_copies"):
        manager.commit("b", np.array([0, 1, 9]), 3)
    with pytest.raises(AssertionError, match="before take_copies"):
        manager.report("draft", ["b"], np.array([0]), np.array([3]))


def test_after_a_reset_no_head_is_found(make_manager, facts, run):
    manager = make_manager()
    run(manager, facts("a"), np.arange(8))
    start(manager, facts("live"), range(50, 53))
    manager.reset()
    check(manager)
    manager.commit("live", np.arange(50, 53), 3)
    check(manager)
    for tokens in (np.array([0, 1, 9]), np.array([50, 51, 9])):
        assert manager.lookup(facts("b"), tokens).num_tokens == 0


def test_draft_components_reach_as_far_as_they_are_whole(make_manager, facts, group):
    manager = make_manager(groups=[group(name) for name in ("whole", "short", "late", "restarted")])

    def report(request_id, name, first, computed):
        manager.report(name, [request_id], np.array([first]), np.array([computed]))

    start(manager, facts("a"), range(8))
    report("a", "whole", 0, 8)
    report("a", "short", 0, 5)
    report("a", "late", 2, 8)
    report("a", "restarted", 0, 8)
    prompt = [*range(7), 99]
    assert manager.lookup(facts("b"), np.array(prompt)).components == {
        "whole": 7,
        "short": 4,
        "late": 0,
        "restarted": 7,
    }

    start(manager, facts("live"), [0, 1, 2, 3, 60, 61, 62])
    report("live", "whole", 0, 6)
    report("live", "restarted", 5, 5)
    report("live", "restarted", 5, 7)
    hit = manager.admit(facts("c"), np.array([0, 1, 2, 3, 60, 61, 62, 99]))
    assert (hit.num_kv_tokens, hit.components) == (7, {"whole": 6, "short": 4, "late": 0, "restarted": 4})
    manager.reserve("c", 8)
    first, computed = manager.draft_range("whole", ["c"])
    assert (first.tolist(), computed.tolist()) == ([0], [6])
    assert len(copies(manager)) == 1


def test_samples_of_one_prompt_share_full_blocks_and_part_in_their_own(make_manager, facts):
    manager = make_manager(num_blocks=40, max_seqs=5)
    prompt = list(range(10))
    start(manager, facts("s0"), [*prompt, 50])
    for index in (1, 2, 3):
        hit, pairs = start(manager, facts(f"s{index}"), [*prompt, 50 + index])
        assert (hit.num_blocks, hit.num_kv_tokens, len(pairs)) == (2, 10, 1)
    tables = [table(manager, f"s{index}") for index in range(4)]
    assert len({tuple(blocks[:2]) for blocks in tables}) == 1
    assert len({blocks[2] for blocks in tables}) == 4
    assert manager.num_used == 2 + 4


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: m.copies._by_request.clear(), "has 1 references, 0 tables hold it and 0 copies pin it"),
        (lambda m: m.cache.index.heads.clear(), "0 heads are found, 4 blocks have one"),
        (lambda m: setattr(m.sequences["live"], "num_computed", 12), "a request offers 8 tokens of a block"),
        (lambda m: setattr(m.sequences["live"], "may_publish", False), "from before a reset"),
        (lambda m: setattr(m.sequences["owed"], "num_computed", 3), "is owed a copy elsewhere"),
        (lambda m: setattr(m.sequences["owed"], "num_computed", 0), "is owed a copy elsewhere"),
    ],
    ids=range(6),
)
def test_the_invariants_can_fail(make_manager, facts, run, damage, message):
    manager = make_manager()
    run(manager, facts("a"), np.arange(8))
    start(manager, facts("live"), range(50, 57))
    manager.admit(facts("owed"), np.array([0, 1, 2, 3, 4, 9]))
    manager.reserve("owed", 6)
    check(manager)
    damage(manager)
    with pytest.raises(AssertionError, match=message):
        check(manager)


def test_a_write_into_a_shared_block_is_seen(make_manager, facts):
    manager = make_manager()
    start(manager, facts("a"), range(8))
    start(manager, facts("b"), [*range(8), 99])
    manager.sequences["b"].num_computed = 7
    with pytest.raises(AssertionError, match="'b' writes into block 1, which others hold"):
        check(manager)
    manager.release("a")
    with pytest.raises(AssertionError, match="'b' writes into block 1, which is published"):
        check(manager)


def test_the_head_index_compares_with_the_newest_only():
    index = HeadIndex()
    for owner in range(40):
        index.put((b"p", 1), owner, np.array([1, 2, 3, owner]))
    assert index.longest(b"p", np.array([1, 2, 3, 39])) == (39, 4)
    assert index.longest(b"p", np.array([1, 2, 3, 0])) == (39, 3), "the oldest would match whole, and is not looked at"
    assert index.longest(b"p", np.array([2])) is None
    assert index.longest(b"q", np.array([1])) is None
    assert index.longest(b"p", np.array([], dtype=np.int64)) is None
    for owner in range(40):
        index.discard((b"p", 1), owner)
    index.discard((b"p", 1), 0)
    assert list(index) == []
