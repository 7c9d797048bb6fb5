"""What was drafted before each row: of a plan, and while a proposer chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.api import Drafts, ProposeBatch, Proposer, RequestFacts, RequestView
from paceline.engine.drafted import ChosenDrafts, drafted_before
from paceline.engine.plan import DraftRows, build_plan
from paceline.engine.request import Request
from paceline.sampling.params import SamplingParams


def request(num_tokens: int, num_computed: int) -> Request:
    made = Request(
        facts=RequestFacts(request_id=str(num_tokens), num_prompt_tokens=num_tokens),
        prompt=None,
        prompt_token_ids=np.arange(num_tokens),
        params=SamplingParams(),
        seed=0,
        stop_ids=frozenset(),
        max_num_tokens=num_tokens + 20,
        draft_limit=None,
        arrival_time_s=0.0,
    )
    made.num_computed = num_computed
    return made


def rows(values: list[list[int]]) -> np.ndarray:
    width = max(map(len, values))
    return np.array([row + [-1] * (width - len(row)) for row in values], dtype=np.int64)


def prefixes(matrix: np.ndarray) -> list[list[int]]:
    return [[int(token) for token in row if token >= 0] for row in matrix]


def test_chain_rows_stand_after_the_drafts_before_them() -> None:
    drafts = DraftRows(rows([[11, 12, 13], [], [14]]), np.array([3, 0, 1]))
    plan = build_plan([request(4, 3), request(5, 4), request(6, 5)], drafts, [request(9, 2)], [7])
    chain = [[], [11], [11, 12], [11, 12, 13]]
    assert prefixes(drafted_before(plan)) == [*chain, [], [], [14], []]


def test_tree_rows_stand_after_their_own_path() -> None:
    drafts = DraftRows(
        rows([[11, 12, 13, 14, 15], [16, 17]]), np.array([5, 2]), rows([[-1, -1, 1, 0, 2], [-1, -1, -1, -1, -1]])
    )
    plan = build_plan([request(4, 3), request(5, 4)], drafts, [], [])
    first = [[], [11], [12], [12, 13], [11, 14], [12, 13, 15]]
    assert prefixes(drafted_before(plan)) == [*first, [], [16], [17]]


def test_without_drafts_there_is_nothing() -> None:
    plan = build_plan([request(4, 3)], DraftRows.none(1), [request(5, 0)], [5])
    assert drafted_before(plan).shape == (2, 0)


def test_what_was_chosen_is_kept_by_position() -> None:
    chosen = ChosenDrafts(np.array([10, 20]), 3)
    assert chosen.before(np.array([10, 20])).tolist() == [[-1] * 3] * 2
    chosen.keep(np.array([10, 20]), np.array([1, 2]))
    chosen.keep(np.array([11, 22]), np.array([3, 4]))
    chosen.keep(np.array([13, 19]), np.array([8, 9]))
    assert chosen.before(np.array([12, 23])).tolist() == [[1, 3, -1], [2, -1, 4]]
    chosen.keep(np.array([11, 20]), np.array([5, 6]))
    assert chosen.before(np.array([12, 20])).tolist() == [[1, 5, -1], [-1, -1, -1]]


class SelfDraft(Proposer):
    """Drafts a chain with the target's own logits by ``choose``, after choices that lead astray."""

    def __init__(self, next_token: Callable[[list[int]], int], vocab_size: int, names_drafts: bool) -> None:
        self.next_token = next_token
        self.vocab_size = vocab_size
        self.names_drafts = names_drafts

    def propose(self, batch: ProposeBatch) -> Drafts:
        drafted: list[list[int]] = [[] for _ in batch.requests]
        for depth in range(int(batch.budgets.max())):
            positions = batch.positions + 1 + depth
            if self.names_drafts:
                self.lead_astray(batch, positions)
            before = np.array(drafted, dtype=np.int64).reshape(len(drafted), depth)
            tokens = batch.choose(
                self.logits(batch.requests, drafted), positions, before if self.names_drafts else None
            )
            for row, token in zip(drafted, tokens.tolist(), strict=True):
                row.append(token)
        return Drafts.from_lists([row[:n] for row, n in zip(drafted, batch.budgets.tolist(), strict=True)])

    def lead_astray(self, batch: ProposeBatch, positions: np.ndarray) -> None:
        import torch

        batch.choose(torch.zeros(len(positions), self.vocab_size), positions - 1)

    def logits(self, requests: tuple[RequestView, ...], drafted: list[list[int]]) -> Any:
        import torch

        logits = torch.zeros(len(requests), self.vocab_size)
        for row, request, own in zip(logits, requests, drafted, strict=True):
            row[self.next_token([*request.tokens.tolist(), *own])] = 10.0
        return logits


@pytest.mark.parametrize("names_drafts", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_drafts_by_choose_are_all_accepted_under_penalties(
    harness: Callable[..., Any], fake: Any, temperature: float, names_drafts: bool
) -> None:
    given = {"temperature": temperature, "frequency_penalty": 2.0, "repetition_penalty": 3.0, "max_tokens": 40}
    plain, drafting = harness(), harness(proposer=SelfDraft(fake.next_token, fake.VOCAB_SIZE, names_drafts))
    for engine in (plain, drafting):
        for prompt in ([1, 2, 3], [4, 4], [5]):
            engine.add(prompt, seed=3, **given)
        engine.run()
    assert {r: plain.tokens(r) for r in plain.outputs} == {r: drafting.tokens(r) for r in drafting.outputs}
    drafted = sum(output.metrics.num_draft_tokens for output in drafting.outputs.values())
    assert drafted == sum(output.metrics.num_accepted_tokens for output in drafting.outputs.values()) > 0
    if temperature == 0:
        assert plain.tokens("r0") != fake.continuation([1, 2, 3], 40)
