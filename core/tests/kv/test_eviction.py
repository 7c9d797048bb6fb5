from __future__ import annotations

import random
from contextlib import contextmanager

import numpy as np
import pytest

from paceline.api import BlockFacts, EvictionContext, EvictionPolicy, TargetFacts
from paceline.kv.errors import EvictionError
from paceline.kv.invariants import check
from paceline.kv.lru import LRUOptions, LRUPolicy, paceline_eviction_policies


def _facts(block_id, last_use_s=0.0, depth=0):
    return BlockFacts(
        block_id=block_id,
        key=bytes([block_id]) * 32,
        depth=depth,
        hits=0,
        last_use_s=last_use_s,
        created_s=0.0,
        num_tokens=4,
        recompute_cost=1.0,
        trust_domain="",
    )


class Recorder(LRUPolicy):
    def __init__(self):
        super().__init__()
        self.events = []

    def evictable(self, blocks):
        self.events.append(("evictable", [b.block_id for b in blocks]))
        super().evictable(blocks)

    def not_evictable(self, block_ids):
        self.events.append(("not_evictable", list(block_ids)))
        super().not_evictable(block_ids)

    def touched(self, blocks):
        self.events.append(("touched", [(b.block_id, b.hits) for b in blocks]))

    def removed(self, block_ids):
        self.events.append(("removed", list(block_ids)))
        LRUPolicy.not_evictable(self, block_ids)


class Fixed(EvictionPolicy):
    """Answers whatever it is told to."""

    def __init__(self, answer):
        self.answer = answer

    def evictable(self, blocks):
        pass

    def not_evictable(self, block_ids):
        pass

    def removed(self, block_ids):
        pass

    def victims(self, count):
        return self.answer


def test_lru_takes_the_longest_unused_and_among_equals_the_deepest():
    policy = LRUPolicy()
    policy.evictable([_facts(1, 5.0), _facts(2, 3.0, depth=1), _facts(3, 3.0, depth=4), _facts(4, 9.0)])
    assert policy.victims(2) == [3, 2]
    assert policy.victims(9) == [3, 2, 1, 4]
    policy.not_evictable([2])
    policy.removed([3])
    assert policy.victims(9) == [1, 4]


def test_lru_answers_like_a_sorted_list():
    rng, policy, expected = random.Random(0), LRUPolicy(), {}
    for _ in range(5000):
        block_id = rng.randrange(30)
        if block_id in expected:
            del expected[block_id]
            rng.choice([policy.not_evictable, policy.removed])([block_id])
        else:
            expected[block_id] = (float(rng.randrange(4)), -rng.randrange(3), block_id)
            policy.evictable([_facts(block_id, expected[block_id][0], -expected[block_id][1])])
        count = rng.randrange(1, 6)
        assert policy.victims(count) == [rank[2] for rank in sorted(expected.values())[:count]]
    assert len(policy._heap) <= 2 * 30 + 65


def test_lru_is_declared_like_any_plugin(facts):
    [spec] = paceline_eviction_policies()
    assert spec.name == "lru"
    target = TargetFacts(
        config={}, vocab_size=1, hidden_size=1, num_layers=1, max_model_len=1, max_num_seqs=1, block_size=1,
        dtype="float32", device="cpu", numerics="exact", tokenizer_fingerprint="", weights_fingerprint="",
    )  # fmt: skip
    spec.describe(LRUOptions(), target)
    assert isinstance(spec.build(LRUOptions(), EvictionContext(clock=float, num_blocks=1)), LRUPolicy)


def test_the_policy_hears_what_happens_in_order(make_manager, facts, run):
    policy = Recorder()
    manager = make_manager(policy=policy, num_blocks=4)
    tokens = np.arange(12)
    run(manager, facts("a"), tokens)
    ids = manager.cache.index
    chain = sorted(ids.entries, key=lambda entry: entry.depth)
    first, second, third = (entry.block_id for entry in chain)
    assert policy.events == [("evictable", [third])]
    policy.events.clear()
    hit = manager.admit(facts("b"), tokens[:8])
    assert hit.num_tokens == 7
    assert policy.events == [("touched", [(first, 1), (second, 1)])]
    policy.events.clear()
    assert manager.reserve("b", 16)
    assert policy.events == [("removed", [third])]
    policy.events.clear()
    manager.release("b")
    assert policy.events == [("evictable", [second])]
    policy.events.clear()
    manager.admit(facts("c"), tokens[:8])
    manager.release("c")
    manager.reset()
    events = ["not_evictable", "touched", "evictable", "removed"]
    assert [kind for kind, _ in policy.events] == events
    assert all(second in [e if isinstance(e, int) else e[0] for e in ids] for _, ids in policy.events)


def test_parents_are_offered_when_their_last_child_goes(make_manager, facts, run):
    policy = Recorder()
    manager = make_manager(policy=policy, num_blocks=5)
    run(manager, facts("a"), np.arange(12))
    run(manager, facts("b"), np.concatenate([np.arange(4), np.arange(90, 98)]))
    assert manager.num_cached == 5
    policy.events.clear()
    run(manager, facts("c"), np.arange(50, 70))
    offered = [ids for kind, ids in policy.events if kind == "evictable"]
    assert [len(ids) for ids in offered] == [2, 1, 1], "two second blocks, their parent once, the new chain's end"
    assert manager.num_cached == 5


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ([], "chose nothing although 1 blocks are evictable"),
        ([0, 0], "chose a block twice"),
        (range(5), "chose 5 blocks, more than were asked for"),
        ([99], "chose block 99, which is not evictable"),
        (["x"], "not a sequence of block ids"),
        (None, "not a sequence of block ids"),
    ],
)
def test_a_wrong_answer_is_an_error_that_names_the_policy(make_manager, facts, run, answer, fault):
    policy = Fixed(answer)
    manager = make_manager(policy=policy, policy_name="hostile", num_blocks=4)
    run(manager, facts("a"), np.arange(16))
    manager.admit(facts("b"), np.arange(50, 60))
    with pytest.raises(EvictionError, match=rf'E402: eviction policy "hostile" .*{fault}.*such as "lru"'):
        manager.reserve("b", 10)
    check(manager)
    assert (manager.capacity("b"), manager.num_free) == (0, 4)


def test_blocks_in_use_are_refused_as_victims(make_manager, facts):
    manager = make_manager(policy=Fixed([0]), num_blocks=4)
    manager.admit(facts("a"), np.arange(8))
    manager.reserve("a", 8)
    manager.commit("a", np.arange(8), 8)
    used = manager.block_tables[manager.row("a"), :2].tolist()
    manager.admit(facts("b"), np.arange(50, 58))
    manager.reserve("b", 8)
    manager.commit("b", np.arange(50, 58), 8)
    manager.release("b")
    manager.cache.driver._policy.answer = used[:1]
    manager.admit(facts("c"), np.arange(70, 78))
    with pytest.raises(EvictionError, match=f"chose block {used[0]}, which is not evictable"):
        manager.reserve("c", 8)
    check(manager)
    assert manager.lookup(facts("d"), np.arange(9)).num_tokens == 8


def test_block_facts_carry_what_a_policy_may_weigh(make_manager, facts):
    class Keeping(Recorder):
        def evictable(self, blocks):
            super().evictable(blocks)
            self.facts = blocks

    policy = Keeping()
    manager = make_manager(policy=policy)
    request = facts("a", trust_domain="team")
    manager.admit(request, np.arange(8))
    manager.reserve("a", 8)
    manager.commit("a", np.arange(8), 8)
    manager.release("a")
    [block] = policy.facts
    assert (block.depth, block.num_tokens, block.trust_domain, block.hits) == (1, 4, "team", 0)
    assert block.created_s < block.last_use_s
    assert block.recompute_cost == 5 + 6 + 7 + 8


@pytest.mark.parametrize("hook", ["evictable", "not_evictable", "touched", "removed", "victims"])
def test_what_a_policy_raises_passes_the_boundary_of_its_hook(make_manager, facts, run, hook):
    class Broken(Recorder):
        pass

    def fail(self, *args):
        raise LookupError(hook)

    setattr(Broken, hook, fail)
    passed = []

    @contextmanager
    def boundary(name):
        try:
            yield
        except LookupError:
            passed.append(name)
            raise

    manager = make_manager(policy=Broken(), policy_boundary=boundary, num_blocks=4)
    with pytest.raises(LookupError):
        for start in (0, 0, 100, 200):
            run(manager, facts(), np.arange(start, start + 12))
    assert passed == [hook]
