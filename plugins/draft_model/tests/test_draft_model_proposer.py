"""Drafts against the model's own rollout, whatever the KV view says is there; and what is fed for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.api import ProposeBatch, ReleaseReason
from paceline_draft_model.choosing import Rule
from paceline_draft_model.proposer import DraftModelProposer

VOCAB_SIZE = 11


def drafts_of(subject: DraftModelProposer, batch: ProposeBatch) -> list[list[int]]:
    drafts = subject.propose(batch)
    assert drafts.parents is None
    assert drafts.tokens.shape[0] == len(batch.requests) and (drafts.lengths <= batch.budgets).all()
    for row, length in zip(drafts.tokens, drafts.lengths, strict=True):
        assert (row[length:] == -1).all()
    return [row[:length].tolist() for row, length in zip(drafts.tokens, drafts.lengths, strict=True)]


def proposer(model: Any, sampling: str = "coupled", min_confidence: float = 0.0) -> DraftModelProposer:
    return DraftModelProposer(model, VOCAB_SIZE, Rule(sampling == "coupled", min_confidence))


@pytest.mark.parametrize("sampling", ["coupled", "greedy"])
@pytest.mark.parametrize("computed", range(7))
def test_drafts_are_the_rollout_at_every_lag(toy_engine, toy_model, toy_request, sampling: str, computed: int) -> None:
    model = toy_model()
    requests = [
        toy_request("a", [1, 2, 3, 4, 5, 6], computed=computed, is_sampled=True),
        toy_request("b", [3, 1], computed=min(computed, 2)),
    ]
    rows = drafts_of(proposer(model, sampling), toy_engine.propose_batch(requests, [4, 4]))
    assert rows == [request.rollout(4, sampling) for request in requests]
    start = min(computed, 5)
    assert [feed["a"] for feed in model.fed] == [(start, 6 - start), (6, 1), (7, 1), (8, 1)]
    assert requests[0].computed == 9  # the last draft is never fed


def test_coupled_and_greedy_differ_where_a_request_samples(toy_engine, toy_model, toy_request) -> None:
    rows = {}
    for sampling in ("coupled", "greedy"):
        requests = [toy_request("a", [1, 2], is_sampled=True), toy_request("b", [1, 2])]
        rows[sampling] = drafts_of(proposer(toy_model(), sampling), toy_engine.propose_batch(requests, [5, 5]))
    assert rows["coupled"][0] != rows["greedy"][0]
    assert rows["coupled"][1] == rows["greedy"][1] == rows["greedy"][0]


@pytest.mark.parametrize("sampling", ["coupled", "greedy"])
def test_mixed_budgets_with_zeros(toy_engine, toy_model, toy_request, sampling: str) -> None:
    model = toy_model()
    requests = [toy_request(name, [1, 2, ord(name) % 9], is_sampled=True) for name in "abcd"]
    budgets = [2, 0, 5, 1]
    rows = drafts_of(proposer(model, sampling), toy_engine.propose_batch(requests, budgets))
    assert rows == [request.rollout(budget, sampling) for request, budget in zip(requests, budgets, strict=True)]
    assert [sorted(feed) for feed in model.fed] == [["a", "c", "d"], ["a", "c"], ["c"], ["c"], ["c"]]
    assert requests[1].computed == 0


@pytest.mark.parametrize("bound", [0.05, 0.2, 0.6])
def test_a_draft_ends_with_the_first_token_below_the_confidence(
    toy_engine, toy_model, toy_request, bound: float
) -> None:
    requests = [toy_request(name, [1, 2, ord(name) % 9], is_sampled=name in "ace") for name in "abcdef"]
    model = toy_model()
    drafts = proposer(model, min_confidence=bound).propose(toy_engine.propose_batch(requests, [8] * 6))
    lengths = []
    for request, confidence in zip(requests, drafts.confidence, strict=True):
        text, given = list(request.tokens), []
        for token in request.rollout(8):
            given.append(request.probability(text, token))
            text.append(token)
        low = [index for index, value in enumerate(given) if value < bound]
        lengths.append(low[0] + 1 if low else 8)
        assert np.allclose(confidence[: lengths[-1]], given[: lengths[-1]], atol=1e-6)
    assert drafts.lengths.tolist() == lengths
    rows = [row[:length].tolist() for row, length in zip(drafts.tokens, drafts.lengths, strict=True)]
    assert rows == [request.rollout(length) for request, length in zip(requests, lengths, strict=True)]
    assert len(model.fed) == max(lengths), "no forward for what is not drafted"


def test_confidence_is_computed_only_for_a_bound(toy_engine, toy_model, toy_request) -> None:
    batch = toy_engine.propose_batch([toy_request("a", [1, 2])], [3])
    assert proposer(toy_model()).propose(batch).confidence is None


@pytest.mark.parametrize("budgets", [[], [0], [0, 0]])
def test_no_budget_no_forward(toy_engine, toy_model, toy_request, budgets: list[int]) -> None:
    model = toy_model()
    requests = [toy_request(f"r{index}", [1, 2, 3]) for index in range(len(budgets))]
    assert drafts_of(proposer(model), toy_engine.propose_batch(requests, budgets)) == [[] for _ in budgets]
    assert model.fed == []


def test_the_rule_sees_the_whole_batch_without_padded_ids(toy_engine, toy_model, toy_request) -> None:
    requests = [toy_request(name, [1, 2]) for name in "abc"]
    drafts_of(proposer(toy_model()), toy_engine.propose_batch(requests, [1, 3, 0]))
    assert toy_engine.choose_shapes == [(3, VOCAB_SIZE)] * 3


@pytest.mark.parametrize("capacity", range(4, 11))
def test_drafting_stops_where_slots_end(toy_engine, toy_model, toy_request, capacity: int) -> None:
    request = toy_request("a", [1, 2, 3, 4, 5, 6], capacity=capacity)
    (row,) = drafts_of(proposer(toy_model()), toy_engine.propose_batch([request], [4]))
    assert row == request.rollout(min(4, max(0, capacity - 5)))


@pytest.mark.parametrize("max_positions", range(4, 11))
def test_drafting_stops_at_the_draft_models_context(toy_engine, toy_model, toy_request, max_positions: int) -> None:
    long, short = toy_request("long", [1, 2, 3, 4, 5, 6]), toy_request("short", [1])
    batch = toy_engine.propose_batch([long, short], [4, 4])
    rows = drafts_of(proposer(toy_model(max_positions)), batch)
    assert rows == [long.rollout(min(4, max(0, max_positions - 5))), short.rollout(4)]


def test_observe_follows_prompt_chunks(toy_engine, toy_model, toy_request) -> None:
    model = toy_model()
    subject, request = proposer(model), toy_request("a", [4, 3, 2, 1, 0, 1, 2])
    for span in [(0, 3), (3, 5)]:
        subject.observe(toy_engine.committed_batch([request], {"a": span}))
        assert request.computed == span[1]
    request.tokens.append(request.chosen(request.tokens))
    subject.observe(toy_engine.committed_batch([request], {"a": (5, 7)}))
    assert [feed["a"] for feed in model.fed] == [(0, 3), (3, 2), (5, 2)]
    assert drafts_of(subject, toy_engine.propose_batch([request], [3])) == [request.rollout(3)]
    assert model.fed[3]["a"] == (7, 1)


def test_observe_makes_up_for_a_shorter_prefix_hit(toy_engine, toy_model, toy_request) -> None:
    model = toy_model()
    none, some = toy_request("none", [1, 2, 3, 4, 5, 6]), toy_request("some", [2, 3, 4, 5, 6, 7], computed=2)
    full = toy_request("full", [5, 6, 7, 8], computed=4)
    ahead = toy_request("ahead", [5, 6, 7, 8], computed=4)
    spans = {"none": (4, 6), "some": (4, 5), "full": (3, 4), "ahead": (0, 2)}
    proposer(model).observe(toy_engine.committed_batch([none, some, full, ahead], spans))
    assert model.fed == [{"none": (0, 6), "some": (2, 3)}]
    assert ahead.computed == 4


def test_observe_leaves_decoded_tokens_to_the_next_draft(toy_engine, toy_model, toy_request) -> None:
    model = toy_model()
    decoding = toy_request("d", [1, 2, 3, 4, 5], num_prompt_tokens=2, computed=3)
    proposer(model).observe(toy_engine.committed_batch([decoding], {"d": (3, 4)}))
    assert model.fed == [] and decoding.computed == 3


def test_observe_follows_recomputation_through_output_tokens(toy_engine, toy_model, toy_request) -> None:
    model = toy_model()
    request = toy_request("r", [1, 2, 3, 4, 5, 6], num_prompt_tokens=2, computed=3)
    proposer(model).observe(toy_engine.committed_batch([request], {"r": (3, 5)}, recomputed=["r"]))
    assert model.fed == [{"r": (3, 2)}]


@pytest.mark.parametrize(("capacity", "max_positions", "fed"), [(4, 99, 4), (99, 3, 3), (99, 99, 6)])
def test_observe_keeps_within_slots_and_context(
    toy_engine, toy_model, toy_request, capacity: int, max_positions: int, fed: int
) -> None:
    model, request = toy_model(max_positions), toy_request("a", [1, 2, 3, 4, 5, 6], capacity=capacity)
    subject = proposer(model)
    subject.observe(toy_engine.committed_batch([request], {"a": (0, 6)}))
    assert model.fed == [{"a": (0, fed)}]
    subject.observe(toy_engine.committed_batch([request], {"a": (0, 6)}))
    assert len(model.fed) == 1


def test_an_empty_step_is_fine(toy_engine, toy_model) -> None:
    subject = proposer(toy_model())
    subject.observe(toy_engine.committed_batch([], {}))
    subject.release(("unknown",), ReleaseReason.ABORTED)
    subject.close()


class Life:
    """Random requests through random steps: prompts in chunks, verification, rejects, pauses, preemption, hits."""

    def __init__(self, toy_engine, toy_request, subject: DraftModelProposer, max_positions: int, seed: int) -> None:
        self.engine, self.toy_request, self.subject = toy_engine, toy_request, subject
        self.rng = np.random.default_rng(seed)
        self.max_positions = max_positions
        self.requests: dict[str, Any] = {}
        self.target_computed: dict[str, int] = {}
        self.recomputed: set[str] = set()
        self.num_drafted = self.num_accepted = self.num_full = self.num_rejected = 0

    def join(self) -> None:
        name, tokens = f"r{self.rng.integers(10**9)}", self.rng.integers(VOCAB_SIZE, size=self.rng.integers(1, 20))
        hit = int(self.rng.integers(len(tokens))) if self.rng.random() < 0.4 else 0
        draft_hit = int(self.rng.integers(hit + 1))
        is_sampled = bool(self.rng.random() < 0.5)
        self.requests[name] = self.toy_request(name, tokens.tolist(), computed=draft_hit, is_sampled=is_sampled)
        self.target_computed[name] = hit

    def preempt(self) -> None:
        name = str(self.rng.choice(list(self.requests)))
        self.subject.release((name,), ReleaseReason.PREEMPTED)
        self.requests[name].forget_kv(0)
        self.target_computed[name] = 0
        self.recomputed.add(name)

    def is_decoding(self, name: str) -> bool:
        return self.target_computed[name] == len(self.requests[name].tokens) - 1

    def step(self, must_accept: bool) -> None:
        chosen = [name for name in self.requests if self.rng.random() < 0.8]
        decoding = [name for name in chosen if self.is_decoding(name)]
        rows = dict(zip(decoding, self.propose(decoding), strict=True))
        spans = {name: self.advance(name, rows.get(name), must_accept) for name in chosen}
        live = [self.requests[name] for name in chosen]
        recomputed = [name for name in self.recomputed if spans.get(name) and name not in decoding]
        self.subject.observe(self.engine.committed_batch(live, spans, recomputed))

    def propose(self, names: list[str]) -> list[list[int]]:
        requests = [self.requests[name] for name in names]
        budgets = self.rng.integers(0, 5, size=len(names))
        for request, budget in zip(requests, budgets.tolist(), strict=True):
            request.capacity = len(request.tokens) + budget - int(self.rng.random() < 0.1)
        rows = drafts_of(self.subject, self.engine.propose_batch(requests, budgets.tolist()))
        for request, row, budget in zip(requests, rows, budgets.tolist(), strict=True):
            assert row == request.rollout(len(row))
            room = min(request.capacity, self.max_positions) - len(request.tokens) + 1
            assert len(row) == max(0, min(budget, room))
        return rows

    def advance(self, name: str, drafts: list[int] | None, must_accept: bool) -> tuple[int, int]:
        """Verify drafts, or compute a prompt chunk; returns the positions whose target KV is new."""
        request, start = self.requests[name], self.target_computed[name]
        if drafts is None:
            stop = min(start + int(self.rng.integers(1, 7)), len(request.tokens))
            stop = min(stop, len(request.tokens) - 1) if name in self.recomputed else stop
            emitted = stop == len(request.tokens)
        else:
            num_accepted = len(drafts) if must_accept else int(self.rng.integers(len(drafts) + 1))
            self.count(len(drafts), num_accepted)
            request.tokens.extend(drafts[:num_accepted])
            request.forget_kv(min(request.computed, len(request.tokens)))
            stop, emitted = len(request.tokens), True
        if emitted:
            # A target that is not the draft model may choose anything after what it accepted.
            request.tokens.append(request.chosen(request.tokens) if must_accept else int(self.rng.integers(11)))
        self.target_computed[name] = stop
        request.capacity = max(request.capacity, len(request.tokens))
        return start, stop

    def count(self, num_drafted: int, num_accepted: int) -> None:
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        self.num_full += num_drafted == num_accepted > 0
        self.num_rejected += num_accepted < num_drafted


@pytest.mark.parametrize("must_accept", [True, False])
@pytest.mark.parametrize("max_positions", [10_000, 30])
@pytest.mark.parametrize("seed", range(3))
def test_every_draft_of_a_long_life_is_the_rollout(
    toy_engine, toy_model, toy_request, must_accept: bool, max_positions: int, seed: int
) -> None:
    subject = proposer(toy_model(max_positions))
    life = Life(toy_engine, toy_request, subject, max_positions, seed)
    for step in range(120):
        if len(life.requests) < 5:
            life.join()
        if step % 7 == 6:
            life.preempt()
        life.step(must_accept)
        for name in [name for name, request in life.requests.items() if len(request.tokens) > 45]:
            del life.requests[name]
    assert life.num_drafted > 100 and life.num_full > 20
    assert must_accept or life.num_rejected > 20
