"""The engine under random operations: requests of all kinds come, go and are aborted, on small pools, with any drafts.

Its runner reads KV as an attention layer would, and its proposer keeps KV of its own in the same blocks, so a wrong
block, slot or range becomes a wrong token or a failed assertion.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from paceline.api import CommittedBatch, Drafts, KVView, ProposeBatch, Proposer, RequestView

GROUP = "draft"
BASE = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]


def entry_of(tokens: Sequence[int]) -> int:
    """The draft KV of the last of ``tokens``, made with all of them in view."""
    state = 7
    for token in tokens:
        state = (state * 17 + int(token) + 1) % 10007
    return state


class RandomProposer(Proposer):
    """Drafts truth and noise. With a KV group it writes entries, lags or starts late, and checks what it finds."""

    def __init__(self, fake: SimpleNamespace, rng: random.Random, *, tree: bool, has_group: bool) -> None:
        self.fake = fake
        self.rng = rng
        self.tree = tree
        self.has_group = has_group
        self.harness: Any = None
        self.live: set[str] = set()

    def propose(self, batch: ProposeBatch) -> Drafts:
        rows = [self._row(request, int(n)) for request, n in zip(batch.requests, batch.budgets, strict=True)]
        if self.has_group:
            self._check(batch.kv[GROUP], batch.requests)
            self._advance(batch.kv[GROUP], batch.requests, [tokens for tokens, _ in rows])
        self.live |= {request.request_id for request in batch.requests}
        return Drafts.from_lists(
            [tokens for tokens, _ in rows], [parents for _, parents in rows] if self.tree else None
        )

    def observe(self, committed: CommittedBatch) -> None:
        for index, request in enumerate(committed.requests):
            own = committed.row_request == index
            positions = committed.positions[own]
            start, stop = committed.computed[index].tolist()
            assert positions.tolist() == list(range(start, stop))
            assert committed.tokens[own].tolist() == request.tokens[start:stop].tolist()
            assert committed.next_tokens[own].tolist() == request.tokens[start + 1 : stop + 1].tolist()
        if self.has_group:
            self._check(committed.kv[GROUP], committed.requests)
            self._advance(committed.kv[GROUP], committed.requests, [[]] * len(committed.requests))
            self._check(committed.kv[GROUP], committed.requests)

    def release(self, request_ids: tuple[str, ...], reason: Any) -> None:
        self.live -= set(request_ids)

    def _row(self, request: RequestView, budget: int) -> tuple[list[int], list[int]]:
        length = self.rng.randint(0, budget)
        truth = self.fake.continuation(request.tokens.tolist(), length)
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        for node in range(length):
            parent = self.rng.randint(-1, node - 1) if self.tree else node - 1
            depths.append(0 if parent < 0 else depths[parent] + 1)
            noise = self.rng.random() < 0.3
            tokens.append(self.rng.randrange(self.fake.VOCAB_SIZE) if noise else truth[depths[-1]])
            parents.append(parent)
        return tokens, parents

    def _slots(self, view: Any, index: int, positions: np.ndarray) -> np.ndarray:
        return self.harness.kv.slots(np.full(len(positions), view.table_rows[index]), positions)

    def _advance(self, view: KVView, requests: Sequence[RequestView], drafts: list[list[int]]) -> None:
        first, computed, capacity = view.first, view.computed, view.capacity
        cells = self.harness.storage.layers(GROUP)[0][0].view(-1)
        for index, request in enumerate(requests):
            tokens = request.tokens.tolist() + drafts[index]
            stop = min(len(tokens), int(capacity[index])) if self.rng.random() < 0.7 else int(computed[index])
            if first[index] == computed[index] and self.rng.random() < 0.3:
                first[index] = computed[index] = self.rng.randint(0, max(stop, 0))
            positions = np.arange(computed[index], max(stop, computed[index]))
            whole = first[index] == 0
            values = [entry_of(tokens[: p + 1]) if whole else -1 - tokens[p] for p in positions]
            if self.tree:  # what lies in the slots of nodes is not what their positions will hold
                values = [0.5 if p >= len(request.tokens) else v for p, v in zip(positions, values, strict=True)]
            cells[self._slots(view, index, positions)] = torch.tensor(values, dtype=torch.float64)
            computed[index] += len(positions)
        view.report(computed, first)

    def _check(self, view: KVView, requests: Sequence[RequestView]) -> None:
        cells = self.harness.storage.layers(GROUP)[0][0].view(-1)
        for index, request in enumerate(requests):
            first, computed = int(view.first[index]), int(view.computed[index])
            assert 0 <= first <= computed <= view.capacity[index]
            tokens = request.tokens.tolist()
            stop = min(computed, len(tokens))
            values = cells[self._slots(view, index, np.arange(first, stop))].tolist()
            for position, value in zip(range(first, stop), values, strict=True):
                allowed = {entry_of(tokens[: position + 1])} | ({-1 - tokens[position]} if first else set())
                assert value in allowed, (
                    f"{request.request_id}: entry at {position} of [{first}, {computed}) is not its own"
                )


class EngineMachine(RuleBasedStateMachine):
    """Add, abort and step in any order; in the end all requests have ended with the right tokens."""

    make: Callable[..., Any]
    fake: SimpleNamespace

    @initialize(
        shape=st.sampled_from(["none", "chain", "tree"]),
        has_group=st.booleans(),
        sizes=st.tuples(st.integers(4, 10), st.sampled_from([4, 2]), st.integers(2, 4), st.integers(0, 8)),
        recompute_tail=st.integers(0, 3),
        enable_prefix_caching=st.booleans(),
        seed=st.integers(0, 99),
    )
    def start(
        self,
        shape: str,
        has_group: bool,
        sizes: tuple[int, int, int, int],
        recompute_tail: int,
        enable_prefix_caching: bool,
        seed: int,
    ) -> None:
        num_blocks, block_size, max_num_seqs, spare_rows = sizes
        proposer = RandomProposer(self.fake, random.Random(seed), tree=shape == "tree", has_group=has_group)
        capabilities: dict[str, Any] = {}
        if shape != "none":
            capabilities = {
                "proposer": proposer,
                "recompute_tail": recompute_tail,
                "lookahead_slots": (lambda budget: 2 * budget) if shape == "tree" else (lambda budget: budget),
                "kv_groups": (self.fake.entries(GROUP),) if has_group else (),
            }
            if shape == "tree":
                capabilities["shape"] = self.fake.TREE
        self.harness = self.make(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_rows,
            max_model_len=40,
            enable_prefix_caching=enable_prefix_caching,
            **capabilities,
        )
        proposer.harness = self.harness
        self.proposer = proposer
        self.longest = min(40, num_blocks * block_size + 1)
        self.wanted: dict[str, list[int]] = {}
        self.most_steps = 0
        self.num_steps = 0

    @rule(
        count=st.integers(1, 3),
        shared=st.integers(0, 8),
        tail=st.lists(st.integers(0, 15), max_size=3),
        max_tokens=st.integers(1, 20),
        stop_ids=st.lists(st.integers(0, 15), max_size=1),
        draft_limit=st.sampled_from([None, None, 0, 2]),
        salt=st.sampled_from(["", "", "s"]),
    )
    def add(
        self,
        count: int,
        shared: int,
        tail: list[int],
        max_tokens: int,
        stop_ids: list[int],
        draft_limit: int | None,
        salt: str,
    ) -> None:
        for index in range(count):
            prompt = ([*BASE[:shared], *tail, index] if index else [*BASE[:shared], *tail]) or [0]
            if len(prompt) >= self.longest:
                return
            params = {"max_tokens": max_tokens, "stop_token_ids": stop_ids, "cache_salt": salt}
            request_id = self.harness.add(prompt, draft_limit=draft_limit, **params)
            most = min(max_tokens, self.longest - len(prompt))
            self.wanted[request_id] = self.fake.continuation(prompt, most, stop_ids)
            self.most_steps += len(prompt) + most

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from([*self.wanted, "unknown"]))
        was_live = request_id in self.wanted and request_id not in self.harness.outputs
        output = self.harness.abort(request_id)
        assert (output is not None) == was_live
        assert output is None or output.outputs[0].finish_reason == "abort"

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.num_steps += self.harness.engine.has_requests
            self.harness.step()

    @invariant()
    def emitted_tokens_are_right(self) -> None:
        for request_id, tokens in getattr(self, "harness", SimpleNamespace(emitted={})).emitted.items():
            assert tokens == self.wanted[request_id][: len(tokens)]

    @invariant()
    def the_proposer_keeps_nothing_of_requests_that_ended(self) -> None:
        if hasattr(self, "harness"):
            assert not self.proposer.live & self.harness.outputs.keys()

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        while self.harness.engine.has_requests:
            self.num_steps += 1
            assert self.num_steps <= self.most_steps, "the first running request did not advance in every step"
            self.harness.step()
        self.emitted_tokens_are_right()
        for request_id, wanted in self.wanted.items():
            output = self.harness.outputs[request_id].outputs[0]
            assert output.token_ids == self.harness.emitted.get(request_id, [])
            assert output.finish_reason == "abort" or output.token_ids == wanted
        assert self.harness.kv.num_used == 0 and not self.proposer.live


def run_machine(make: Callable[..., Any], fake: SimpleNamespace, **wanted: Any) -> None:
    machine = type("Machine", (EngineMachine,), {"make": staticmethod(make), "fake": fake})
    common = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(machine, settings=settings(**common, **wanted))


def test_random_operations(harness: Callable[..., Any], fake: SimpleNamespace) -> None:
    run_machine(harness, fake, max_examples=50, stateful_step_count=25, derandomize=True)


@pytest.mark.slow
def test_more_random_operations(harness: Callable[..., Any], fake: SimpleNamespace) -> None:
    run_machine(harness, fake, max_examples=500, stateful_step_count=40)
