"""What an eviction policy is held to: it chooses among what it was offered, and always can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.api import BlockFacts, EvictionContext, EvictionPolicy
from paceline.testing.contract import Contract, should
from paceline.testing.engines import Ask, random_tokens, run
from paceline.testing.memory import check_memory

__all__ = ["EvictionPolicyContract"]

NUM_BLOCKS = 24


class Pool:
    """Blocks that come, are used again and go, as in a cache, and what a policy was told of them."""

    def __init__(self, policy: EvictionPolicy, seed: int) -> None:
        self.policy = policy
        self.offered: dict[int, BlockFacts] = {}
        self._used: list[BlockFacts] = []
        self._free = list(range(NUM_BLOCKS))
        self._random = np.random.default_rng(seed)
        self.now_s = 0.0

    def clock(self) -> float:
        """Seconds of the pool's own."""
        return self.now_s

    def one_event(self) -> None:
        """Something that can happen in a cache."""
        self.now_s += 0.5
        actions = [self._make, self._offer, self._offer, self._reuse, self._touch, self._evict]
        actions[int(self._random.integers(len(actions)))]()

    def drain(self) -> None:
        """Take everything that is offered, as a full cache does."""
        while self.offered:
            self.evict(int(self._random.integers(1, 4)))

    def evict(self, count: int) -> list[int]:
        """Ask for victims, check the answer, and evict them."""
        chosen = [int(block_id) for block_id in self.policy.victims(count)]
        self.check(chosen, count)
        for block_id in chosen:
            del self.offered[block_id]
        self._free += chosen
        self.policy.removed(chosen)
        return chosen

    def check(self, chosen: Sequence[int], count: int) -> None:
        """An answer holds different offered blocks, at least one and at most ``count``."""
        assert chosen, f"victims({count}) chose nothing, and {sorted(self.offered)} may go"
        assert len(chosen) <= count, f"victims({count}) chose {len(chosen)} blocks: {chosen}"
        assert len(set(chosen)) == len(chosen), f"victims({count}) chose a block twice: {chosen}"
        strange = [block_id for block_id in chosen if block_id not in self.offered]
        assert not strange, f"victims({count}) chose {strange}; only {sorted(self.offered)} may go"

    def _make(self) -> None:
        if self._free:
            depth = int(self._random.integers(4))
            self._used.append(self._facts(self._free.pop(0), depth))

    def _facts(self, block_id: int, depth: int) -> BlockFacts:
        return BlockFacts(
            block_id=block_id,
            key=self._random.bytes(32),
            depth=depth,
            hits=0,
            last_use_s=self.now_s,
            created_s=self.now_s,
            num_tokens=16,
            recompute_cost=16.0 * (16 * depth + 8.5),
            trust_domain=str(block_id % 2),
            retention_priority=block_id % 3,
        )

    def _offer(self) -> None:
        if self._used:
            count = int(self._random.integers(1, len(self._used) + 1))
            blocks, self._used = self._used[:count], self._used[count:]
            self.offered |= {block.block_id: block for block in blocks}
            self.policy.evictable(blocks)

    def _reuse(self) -> None:
        if self.offered:
            block = self.offered.pop(self._one())
            self._used.append(replace(block, hits=block.hits + 1, last_use_s=self.now_s))
            self.policy.touched([self._used[-1]])
            self.policy.not_evictable([block.block_id])

    def _touch(self) -> None:
        if self.offered:
            block_id = self._one()
            block = replace(self.offered[block_id], hits=self.offered[block_id].hits + 1)
            self.policy.touched([block])

    def _one(self) -> int:
        return int(self._random.choice(sorted(self.offered)))

    def _evict(self) -> None:
        if self.offered:
            self.evict(int(self._random.integers(1, 5)))


class EvictionPolicyContract(Contract):
    """Tests of an eviction policy."""

    kind = "eviction_policy"

    def choice(self) -> dict[str, Any]:
        """The configuration's fields."""
        return {"eviction_policy": self.plugin, "eviction_policy_options": dict(self.options)}

    def pool(self, seed: int = 0) -> Pool:
        """A pool with a new policy."""
        now_s = [0.0]
        policy = self.load().build(EvictionContext(clock=lambda: now_s[0], num_blocks=NUM_BLOCKS))
        return Pool(policy, seed)

    def test_victims_are_evictable(self) -> None:
        """Whatever happened before, victims are different blocks that may go, at least one of them."""
        for seed in range(20):
            pool = self.pool(seed)
            for _ in range(120):
                pool.one_event()

    def test_everything_can_go(self) -> None:
        """Asked again and again, the policy gives up every block that may go."""
        for seed in range(20):
            pool = self.pool(seed)
            for _ in range(60):
                pool.one_event()
            pool.drain()

    def test_asking_changes_nothing(self) -> None:
        """Asked twice, ``victims`` says the same: the core may ask and then not evict."""
        for seed in range(10):
            pool = self.pool(seed)
            for _ in range(60):
                pool.one_event()
                if pool.offered:
                    first, second = list(pool.policy.victims(3)), list(pool.policy.victims(3))
                    assert first == second, f"victims(3) said {first}, then {second}"

    def test_more_than_there_is(self) -> None:
        """Asked for more blocks than may go, it gives what there is; with none, nothing."""
        pool = self.pool()
        nothing = list(pool.policy.victims(5))
        assert not nothing, f"victims(5) chose {nothing} before any block was offered"
        for _ in range(80):
            pool.one_event()
        if pool.offered:
            pool.check(list(pool.policy.victims(10 * NUM_BLOCKS)), 10 * NUM_BLOCKS)

    @should
    def test_choices_repeat(self) -> None:
        """The same events lead to the same victims."""
        for seed in range(10):
            first, second = self.pool(seed), self.pool(seed)
            for _ in range(60):
                first.one_event()
                second.one_event()
                own, other = (list(pool.policy.victims(3)) for pool in (first, second))
                assert own == other, f"after the same events victims(3) said {own} and {other}"

    def test_memory_does_not_grow(self) -> None:
        """Blocks that are gone are forgotten: 2000 of them leave nothing behind."""
        pool = self.pool()

        def work() -> None:
            for _ in range(100):
                pool.one_event()
            pool.drain()

        check_memory(pool.policy, work, rounds=40, requests_per_round=25)

    def test_tokens_are_the_same(self) -> None:
        """In an engine short of blocks, requests emit what they emit under any other policy, and no block is lost."""
        heads = [random_tokens(seed, 24) for seed in range(4)]
        asks = [Ask(tokens=head + random_tokens(9, 5), seed=seed) for seed, head in enumerate(heads * 3)]
        with self.plain() as llm:
            expected = run(llm, asks)
        with self.engine(num_gpu_blocks_override=14, max_num_seqs=2) as llm:
            emitted = run(llm, asks)
            assert llm.reset_prefix_cache(), "blocks are in use after every request has ended"
        assert emitted == expected, f"emitted {emitted}, under another policy {expected}"
