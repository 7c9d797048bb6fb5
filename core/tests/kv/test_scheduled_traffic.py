"""The scheduler on the manager, without a model: random traffic with priorities, aborts and resets.

Every slot remembers what was computed or copied into it. The oracle of content is a hash of the tokens before, as in a
real cache; that of scheduling is the rank of the requests.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.api import RequestFacts
from paceline.engine.plan import DraftRows
from paceline.engine.request import FinishReason, Request
from paceline.engine.scheduler import Scheduler
from paceline.kv.identity import CoreIdentity, IdentityBuilder
from paceline.kv.invariants import check
from paceline.kv.lru import LRUPolicy
from paceline.kv.manager import KVManager
from paceline.kv.retention import Retention
from paceline.sampling.params import SamplingParams

BLOCK, NUM_BLOCKS, MAX_SEQS, MAX_ROWS, MAX_LEN = 4, 14, 4, 9, 30
CORE = CoreIdentity(
    weights_fingerprint="w", tokenizer_fingerprint="t", rope="", attention="", kv_dtype="float32", kv_layout="",
    block_size=BLOCK, numerics="exact", numerics_facts="",
)  # fmt: skip
PROMPTS = ([0] * 16, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0], [1] * 16)


class Traffic:
    """One engine's life; each method is an operation."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self.now_s = 0.0
        self.kv = KVManager(
            num_blocks=NUM_BLOCKS, block_size=BLOCK, groups=[], policy=LRUPolicy(), identity=IdentityBuilder(CORE),
            clock=lambda: self.now_s, enable_prefix_caching=True, max_seqs=MAX_SEQS,
            max_blocks_per_seq=-(-MAX_LEN // BLOCK) + 1,
        )  # fmt: skip
        self.scheduler = Scheduler(
            self.kv, max_num_seqs=MAX_SEQS, max_num_batched_tokens=max_rows, lookahead_slots=lambda budget: budget,
            recompute_tail=0, on_preempt=self.on_preempt, on_admit=self.on_admit,
        )  # fmt: skip
        self.live: dict[str, Request] = {}
        self.memory: dict[int, Any] = {}
        self.epoch: dict[str, int] = {}
        self.num_resets = self.num_added = 0
        self.counts: Counter[str] = Counter()
        self.displaced_by: list[tuple[Request, Request]] = []
        self.preempted: list[Request] = []

    def add(self, prompt: list[int], num_output_tokens: int, priority: int) -> None:
        request_id = f"r{self.num_added}"
        self.num_added += 1
        request = Request(
            facts=RequestFacts(request_id=request_id, num_prompt_tokens=len(prompt)),
            prompt=None,
            prompt_token_ids=np.array(prompt, dtype=np.int64),
            params=SamplingParams(temperature=0.0),
            seed=0,
            stop_ids=frozenset(),
            max_num_tokens=min(len(prompt) + num_output_tokens, MAX_LEN),
            draft_limit=None,
            arrival_time_s=self.now_s,
        )
        request.priority, request.retention = priority, Retention(abs(priority), 3.0)
        self.live[request_id] = request
        self.scheduler.add(request)

    def abort(self, number: int) -> None:
        if self.live:
            self._end(sorted(self.live)[number % len(self.live)])

    def _end(self, request_id: str) -> None:
        self.scheduler.remove(self.live.pop(request_id))

    def reset(self) -> None:
        self.num_resets += 1
        self.kv.reset()

    def on_preempt(self, request: Request) -> None:
        self.counts["preempted"] += 1
        self.preempted.append(request)

    def on_admit(self, request: Request) -> None:
        self.epoch[request.request_id] = self.num_resets
        for victim in self.preempted:
            self.counts["displaced"] += victim.priority > request.priority
        self.counts["partial"] += request.write_from % BLOCK > 0

    def step(self) -> None:
        """One engine step; every request's next token is told by those before it."""
        self.now_s += 1.0
        self.preempted.clear()
        was_waiting = {request.request_id for request in self.scheduler.waiting}
        decoding = self.scheduler.decoding()
        budgets = np.array([request.num_tokens % 3 for request in decoding], dtype=np.int64)
        selected = self.scheduler.select(decoding, budgets)
        self._check_queues(was_waiting)
        self._copy()
        if selected.decoding or selected.chunks:
            plan = self.scheduler.place(selected, DraftRows.none(len(selected.decoding)))
            assert len(plan.tokens) <= self.scheduler._max_num_batched_tokens
            for index, request in enumerate(plan.requests):
                self._compute(request, int(plan.starts[index]), int(plan.counts[index]))
        check(self.kv)

    def _check_queues(self, was_waiting: set[str]) -> None:
        waiting, running = self.scheduler.waiting, self.scheduler.running
        for queue in (waiting, running):
            assert queue == sorted(queue, key=lambda request: request.rank)
        assert {request.request_id for request in waiting + running} == set(self.live)
        assert running or not waiting, "nobody runs although somebody waits"
        if waiting and running and waiting[0].priority < running[-1].priority:
            lower = [request for request in running if request.priority > waiting[0].priority]
            hit = self.kv.lookup(waiting[0].facts, waiting[0].tokens)
            num_better = len(running) - len(lower)
            better_rows = sum(r.num_uncomputed for r in running if r.rank < waiting[0].rank)
            fits = self.kv.can_admit(hit, waiting[0].num_tokens, num_better, [r.request_id for r in lower])
            assert not fits or better_rows >= self.scheduler._max_num_batched_tokens, "a better priority waits"

    def _copy(self) -> None:
        before = dict(self.memory)
        for source, destination in zip(*(blocks.tolist() for blocks in self.kv.take_copies()), strict=True):
            for offset in range(BLOCK):
                self.memory[destination * BLOCK + offset] = before.get(source * BLOCK + offset)

    def _compute(self, request: Request, start: int, count: int) -> None:
        request_id, stop = request.request_id, start + count
        tokens = request.tokens.tolist()
        slots = self.kv.slots(np.full(stop, request.row), np.arange(stop)).tolist()
        for position in range(max(start, request.write_from), stop):
            assert self.kv.cache.pool.refs(slots[position] // BLOCK) == 1, "a write into a shared block"
            self.memory[slots[position]] = tuple(tokens[: position + 1])
        for position in range(stop):
            assert self.memory[slots[position]] == tuple(tokens[: position + 1]), "KV of another prefix"
        request.num_computed = stop
        if stop == request.num_tokens:
            request.append(np.array([(sum(tokens) + len(tokens) // 5) % 2]))
        self.kv.commit(request_id, request.tokens, stop)
        self.kv.rewind(request_id, request.num_tokens)
        if not request.room:
            request.finish_reason = FinishReason.LENGTH
            self._end(request_id)
            self.counts["finished"] += 1

    def drain(self) -> None:
        """No more arrivals: everything ends, and nothing is held."""
        num_steps_left = 200 + 40 * len(self.live)
        while self.live:
            num_steps_left -= 1
            assert num_steps_left, "requests that never end"
            self.step()
        assert (self.kv.num_used, self.kv.sequences) == (0, {})


class TrafficMachine(RuleBasedStateMachine):
    counts: ClassVar[Counter[str]] = Counter()

    @initialize(max_rows=st.sampled_from([MAX_SEQS, MAX_ROWS, 64]))
    def start(self, max_rows: int) -> None:
        self.traffic = Traffic(max_rows)

    @rule(
        prompt=st.sampled_from(PROMPTS),
        length=st.integers(1, 16),
        num_output_tokens=st.integers(1, 12),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
    )
    def add(self, prompt: list[int], length: int, num_output_tokens: int, priority: int) -> None:
        self.traffic.add(prompt[:length], num_output_tokens, priority)

    @precondition(lambda self: self.traffic.live)
    @rule(number=st.integers(0, 9))
    def abort(self, number: int) -> None:
        self.traffic.abort(number)

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.traffic.step()

    @rule(chance=st.integers(0, 5))
    def reset(self, chance: int) -> None:
        if not chance:
            self.traffic.reset()

    @invariant()
    def invariants_hold(self) -> None:
        check(self.traffic.kv)

    def teardown(self) -> None:
        if hasattr(self, "traffic"):
            self.traffic.drain()


TestTraffic = TrafficMachine.TestCase
TestTraffic.settings = settings(max_examples=30, stateful_step_count=30, deadline=None, derandomize=True, database=None)


def run_random(seed: int, num_operations: int) -> Counter[str]:
    """One life of so many operations, the invariants checked after each."""
    rng, traffic = random.Random(seed), Traffic()
    for _ in range(num_operations):
        kind = rng.choices(("step", "add", "abort", "reset"), (60, 14, 2, 0.2))[0]
        if kind == "add" and len(traffic.live) < 20:
            prompt = rng.choice(PROMPTS)[: rng.randint(1, 16)]
            traffic.add(prompt, rng.randint(1, 14), rng.choice((0, 0, 1, -1)))
        elif kind == "abort":
            traffic.abort(rng.randint(0, 99))
        elif kind == "reset":
            traffic.reset()
        else:
            traffic.step()
        check(traffic.kv)
        traffic.counts[kind] += 1
    traffic.drain()
    return traffic.counts


def test_a_thousand_operations() -> None:
    counts = run_random(seed=1, num_operations=1_000)
    assert min(counts[name] for name in ("partial", "displaced", "preempted", "finished", "abort")) > 5, counts


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_ten_thousand_operations(seed: int) -> None:
    counts = run_random(seed, num_operations=10_000)
    assert sum(counts[kind] for kind in ("step", "add", "abort", "reset")) == 10_000
    assert min(counts[name] for name in ("partial", "displaced", "preempted", "finished", "abort")) > 100, counts
