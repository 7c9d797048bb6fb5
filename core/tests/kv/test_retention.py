from __future__ import annotations

import numpy as np
import pytest

from paceline.kv.invariants import check
from paceline.kv.lru import LRUPolicy
from paceline.kv.retention import NO_TERM, Retention, RetentionTerm


class Listening(LRUPolicy):
    """Keeps what it was told last of each block."""

    def __init__(self):
        super().__init__()
        self.told = {}

    def evictable(self, blocks):
        super().evictable(blocks)
        self.told |= {block.block_id: (block.retention_priority, block.retention_expiry_s) for block in blocks}


@pytest.fixture
def cache(make_manager):
    policy, now_s = Listening(), [100.0]
    manager = make_manager(policy=policy, clock=lambda: now_s[0])

    def use(request, tokens, retention, at_s):
        """The term told of the one block that is released at ``at_s``."""
        tokens = np.array(tokens)
        manager.admit(request, tokens, retention=retention)
        manager.reserve(request.request_id, len(tokens))
        manager.take_copies()
        manager.commit(request.request_id, tokens, len(tokens))
        now_s[0] = at_s
        [block_id] = manager.sequences[request.request_id].block_ids
        manager.release(request.request_id)
        check(manager)
        return policy.told[block_id]

    return use


def test_the_policy_is_told_from_the_last_use_on(cache, facts):
    assert cache(facts("a"), range(4), Retention(), 200.0) == (0, None)
    assert cache(facts("b"), range(10, 14), Retention(7), 250.0) == (7, None)
    assert cache(facts("c"), range(20, 24), Retention(7, 30.0), 300.0) == (7, 330.0)


def test_the_strongest_wish_holds_while_it_lasts(cache, facts):
    tokens = range(4)
    assert cache(facts("a"), tokens, Retention(5, 100.0), 200.0) == (5, 300.0)
    assert cache(facts("b"), tokens, Retention(), 210.0) == (5, 300.0)
    assert cache(facts("c"), tokens, Retention(2), 220.0) == (5, 300.0)
    assert cache(facts("d"), tokens, Retention(5, 100.0), 230.0) == (5, 330.0)
    assert cache(facts("e"), tokens, Retention(2, 10.0), 340.0) == (2, 350.0), "the first has expired"
    assert cache(facts("f"), tokens, Retention(2), 345.0) == (2, None)


def test_terms_merge_by_priority_then_expiry():
    assert NO_TERM.merged(RetentionTerm(1, 5.0), 4.0) == RetentionTerm(1, 5.0)
    assert RetentionTerm(1, 9.0).merged(RetentionTerm(2, 5.0), 4.0) == RetentionTerm(2, 5.0)
    assert RetentionTerm(2, 5.0).merged(RetentionTerm(1, 9.0), 6.0) == RetentionTerm(1, 9.0)


def test_a_block_that_another_still_uses_keeps_the_wish(make_manager, facts):
    policy = Listening()
    manager = make_manager(policy=policy)
    tokens = np.arange(5)
    for name, retention in (("a", Retention(3)), ("b", Retention())):
        manager.admit(facts(name), tokens, retention=retention)
        manager.reserve(name, 5)
        manager.take_copies()
        manager.commit(name, tokens, 5)
    [shared] = {*manager.sequences["a"].block_ids} & {*manager.sequences["b"].block_ids}
    manager.release("a")
    assert shared not in policy.told
    manager.release("b")
    assert policy.told == {shared: (3, None)}
    manager.reset()
    check(manager)


def test_a_twin_hands_its_wish_to_the_key(make_manager, facts):
    policy = Listening()
    manager = make_manager(policy=policy)
    tokens = np.arange(4)
    for name in ("a", "b"):
        manager.admit(facts(name), tokens, retention=Retention(4 if name == "b" else 0))
        manager.reserve(name, 4)
    for name in ("a", "b"):
        manager.commit(name, tokens, 4)
    manager.release("b")
    manager.release("a")
    assert list(policy.told.values()) == [(4, None)]
