from __future__ import annotations

import numpy as np
import pytest

from paceline.kv.errors import DraftRangeError, KVGroupError
from paceline.kv.invariants import check


def _start(manager, request, tokens):
    hit = manager.admit(request, tokens)
    assert manager.reserve(request.request_id, len(tokens))
    manager.commit(request.request_id, tokens, len(tokens))
    return hit


def _report(manager, request_id, first, computed, group="draft"):
    manager.report(group, [request_id], np.array([first]), np.array([computed]))
    check(manager)


def _range(manager, request_id, group="draft"):
    first, computed = manager.draft_range(group, [request_id])
    return int(first[0]), int(computed[0])


def test_a_component_is_published_when_target_and_range_cover_the_block(make_manager, facts, group):
    manager = make_manager(groups=[group(), group("other")])
    tokens = np.arange(12)
    manager.admit(facts("a"), tokens)
    manager.reserve("a", 12)
    _report(manager, "a", 0, 7)
    assert manager.lookup(facts("b"), tokens).components == {"draft": 0, "other": 0}
    manager.commit("a", tokens, 12)
    assert manager.lookup(facts("b"), tokens).components == {"draft": 4, "other": 0}
    _report(manager, "a", 0, 8)
    assert manager.lookup(facts("b"), tokens).components == {"draft": 8, "other": 0}
    hit = manager.admit(facts("b"), tokens)
    assert hit.num_tokens == 11
    assert (_range(manager, "b"), _range(manager, "b", "other")) == ((0, 8), (0, 0))


def test_components_stay_with_their_block_in_the_cache(make_manager, facts, group):
    manager = make_manager(groups=[group()])
    tokens = np.arange(8)
    _start(manager, facts("a"), tokens)
    _report(manager, "a", 0, 8)
    manager.release("a")
    assert manager.admit(facts("b"), tokens).components == {"draft": 8}
    assert _range(manager, "b") == (0, 8)
    manager.release("b")
    manager.reset()
    assert manager.admit(facts("c"), tokens).components == {"draft": 0}
    assert _range(manager, "c") == (0, 0), "a row keeps nothing of its last request"


def test_a_late_start_is_valid_but_never_published(make_manager, facts, group):
    manager = make_manager(groups=[group()])
    _start(manager, facts("a"), np.arange(12))
    _report(manager, "a", 3, 12)
    assert _range(manager, "a") == (3, 12)
    assert manager.lookup(facts("b"), np.arange(12)).components == {"draft": 0}
    _report(manager, "a", 3, 3)
    _report(manager, "a", 0, 12)
    assert manager.lookup(facts("b"), np.arange(12)).components == {"draft": 12}


def test_a_late_start_in_shared_blocks_takes_their_components_back(make_manager, facts, group):
    manager = make_manager(groups=[group(), group("other")])
    tokens = np.arange(12)
    _start(manager, facts("a"), tokens)
    _report(manager, "a", 0, 12)
    _report(manager, "a", 0, 12, "other")
    assert manager.admit(facts("b"), tokens).components == {"draft": 12, "other": 12}
    _report(manager, "b", 12, 12)
    _report(manager, "b", 6, 9)
    assert manager.lookup(facts("c"), tokens).components == {"draft": 4, "other": 12}
    assert _range(manager, "a") == (0, 4), "what it had there was overwritten"
    assert _range(manager, "a", "other") == (0, 12)
    assert _range(manager, "b") == (6, 9)
    _report(manager, "a", 0, 12)
    assert manager.lookup(facts("c"), tokens).components == {"draft": 12, "other": 12}


def test_a_range_that_was_restarted_late_marks_its_blocks_again_from_0(make_manager, facts, group):
    manager = make_manager(groups=[group()])
    tokens = np.arange(12)
    _start(manager, facts("a"), tokens)
    for first, computed in ((0, 12), (12, 12), (6, 9)):
        _report(manager, "a", first, computed)
    assert manager.lookup(facts("b"), tokens).components == {"draft": 4}
    _report(manager, "a", 9, 9)
    _report(manager, "a", 0, 12)
    assert manager.lookup(facts("b"), tokens).components == {"draft": 12}


def test_a_twin_brings_its_own_components(make_manager, facts, group):
    manager = make_manager(groups=[group()])
    tokens = np.arange(8)
    for name in ("a", "b"):
        manager.admit(facts(name), tokens)
        manager.reserve(name, 8)
    for name in ("a", "b"):
        manager.commit(name, tokens, 8)
    _report(manager, "a", 0, 8)
    _report(manager, "b", 0, 4)
    assert manager.lookup(facts("c"), tokens).components == {"draft": 8}
    manager.release("a")
    check(manager)
    assert manager.lookup(facts("c"), tokens).components == {"draft": 4}


def test_a_recycled_block_has_lost_its_components(make_manager, facts, group):
    manager = make_manager(groups=[group()], num_blocks=2)
    _start(manager, facts("a"), np.arange(8))
    _report(manager, "a", 0, 8)
    manager.release("a")
    _start(manager, facts("b"), np.arange(50, 58))
    assert manager.lookup(facts("c"), np.arange(50, 58)).components == {"draft": 0}


def test_clamp_and_rewind_take_back_draft_positions(make_manager, facts, group):
    manager = make_manager(groups=[group()])
    _start(manager, facts("a"), np.arange(6))
    manager.reserve("a", 12)
    _report(manager, "a", 0, 11)
    manager.clamp_drafts("a", 7)
    assert _range(manager, "a") == (0, 7)
    manager.clamp_drafts("a", 9)
    assert _range(manager, "a") == (0, 7)
    _report(manager, "a", 0, 11)
    manager.rewind("a", 6)
    assert _range(manager, "a") == (0, 8)
    _report(manager, "a", 8, 8)
    manager.clamp_drafts("a", 5)
    assert _range(manager, "a") == (5, 5)


def test_ranges_of_a_batch_are_read_and_stored_together(make_manager, facts, group):
    manager = make_manager(groups=[group()])
    for name in ("a", "b", "c"):
        manager.admit(facts(name), np.arange(3))
        manager.reserve(name, 8)
    manager.report("draft", ["c", "a"], np.array([0, 2]), np.array([5, 6]))
    first, computed = manager.draft_range("draft", ["a", "b", "c"])
    assert (first.tolist(), computed.tolist()) == ([2, 0, 0], [6, 0, 5])
    assert first.dtype == computed.dtype == np.int64


@pytest.mark.parametrize(
    ("first", "computed", "message"),
    [
        (0, 9, r"reported as \[0, 9\), beyond its 8 reserved slots; report what was written only"),
        (-1, 3, "which is no range: 0 <= first <= computed"),
        (4, 3, "which is no range: 0 <= first <= computed"),
        (6, 7, r"does not continue the present \[1, 5\); start inside it or at its end"),
        (0, 7, r"does not continue the present \[1, 5\)"),
    ],
)
def test_an_impossible_range_is_refused_and_nothing_is_stored(make_manager, facts, group, first, computed, message):
    manager = make_manager(groups=[group()])
    for name in ("a", "b"):
        manager.admit(facts(name), np.arange(3))
        manager.reserve(name, 8)
        _report(manager, name, 1, 5)
    with pytest.raises(DraftRangeError, match=rf'E403: KV group "draft": request "b" was .*{message}'):
        manager.report("draft", ["a", "b"], np.array([1, first]), np.array([6, computed]))
    assert (_range(manager, "a"), _range(manager, "b")) == ((1, 5), (1, 5))


def test_an_unknown_group_is_named_with_the_nearest(make_manager, group):
    manager = make_manager(groups=[group()])
    with pytest.raises(KVGroupError, match='E404: there is no draft KV group "drafts"; did you mean "draft"'):
        manager.draft_range("drafts", [])


@pytest.mark.parametrize("names", [("draft", "draft"), ("target",)])
def test_a_taken_group_name_is_refused(make_manager, group, names):
    with pytest.raises(KVGroupError, match=f'the name "{names[-1]}" of a draft KV group is taken'):
        make_manager(groups=[group(name) for name in names])
