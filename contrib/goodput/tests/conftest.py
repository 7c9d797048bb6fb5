"""A simulated engine for the controller: costs and acceptance are given, and so known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from paceline.api import Drafts, EngineState, ReleaseReason, StepOutcome
from paceline_goodput.controller import GoodputController

Chance = Callable[[str], float]
Seconds = Callable[[int], float]


@dataclass
class Step:
    """What a simulated step did; lists have an entry for each request."""

    budgets: list[int]
    kept: list[int]
    accepted: list[int]
    seconds: float


@dataclass
class Simulation:
    """Steps of the same requests, whose tokens are each accepted with a chance of the request's own.

    Attributes:
        controller: The controller.
        seconds: Time of a target pass by rows.
        chance: ``request id -> chance`` that a token is accepted after those before it.
        delivered: ``(request id, budget, random) -> tokens`` that the proposer drafts.
        draft_s: Time of drafting by the longest budget.
        parents: Whether drafts are trees.
        noise: Relative noise of each time, upwards.
    """

    controller: GoodputController
    seconds: Seconds
    chance: Chance
    delivered: Callable[[str, int, np.random.Generator], int] = lambda request_id, budget, random: budget
    draft_s: Seconds = lambda depth: 1e-4
    parents: bool = False
    noise: float = 0.0
    max_tokens: int = 5
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def run(self, ids: Sequence[str], count: int, num_prompt_rows: int = 0) -> list[Step]:
        return [self._step(tuple(ids), num_prompt_rows) for _ in range(count)]

    def _step(self, ids: tuple[str, ...], num_prompt_rows: int) -> Step:
        budgets = self.controller.budgets(self._state(ids))
        chosen = np.flatnonzero(budgets)
        kept = np.zeros(len(ids), dtype=np.int64)
        if len(chosen):
            lists = [[1] * self.delivered(ids[index], int(budgets[index]), self.random) for index in chosen]
            drafts = Drafts.from_lists(lists)
            if self.parents:
                drafts = Drafts(tokens=drafts.tokens, lengths=drafts.lengths, parents=np.zeros_like(drafts.tokens))
            kept[chosen] = self.controller.trim(drafts, self._state(tuple(ids[index] for index in chosen)))
        accepted = np.array([self._accepted(name, length) for name, length in zip(ids, kept.tolist(), strict=True)])
        return self._report(ids, budgets, kept, accepted, num_prompt_rows)

    def _accepted(self, request_id: str, length: int) -> int:
        right = self.random.random(length) < self.chance(request_id)
        return int(right.cumprod().sum())

    def _report(
        self, ids: tuple[str, ...], budgets: np.ndarray, kept: np.ndarray, accepted: np.ndarray, num_prompt_rows: int
    ) -> Step:
        some = np.flatnonzero(kept)
        num_rows = len(ids) + int(kept.sum()) + num_prompt_rows
        noise = 1.0 + self.noise * abs(self.random.standard_normal())
        outcome = StepOutcome(
            request_ids=tuple(ids[index] for index in some),
            drafted=kept[some],
            accepted=accepted[some],
            num_rows=num_rows,
            draft_time_s=self.draft_s(int(budgets.max())),
            verify_time_s=self.seconds(num_rows) * noise,
            num_prompt_rows=num_prompt_rows,
        )
        self.controller.observe(outcome)
        seconds = self.seconds(num_rows) + outcome.draft_time_s
        return Step(budgets.tolist(), kept.tolist(), accepted.tolist(), seconds)

    def _state(self, ids: tuple[str, ...]) -> EngineState:
        return EngineState(
            request_ids=ids,
            limits=np.full(len(ids), self.max_tokens),
            drafted=np.zeros(len(ids), dtype=np.int64),
            accepted=np.zeros(len(ids), dtype=np.int64),
            num_waiting=0,
            free_block_ratio=1.0,
        )


@pytest.fixture
def simulate() -> Iterator[Callable[..., Simulation]]:
    """``(seconds, chance, **fields) -> Simulation`` with a new controller."""

    def make(seconds: Seconds, chance: Chance | float, max_tokens: int = 5, **fields: object) -> Simulation:
        of_request = chance if callable(chance) else lambda request_id: chance
        return Simulation(GoodputController(max_tokens), seconds, of_request, max_tokens=max_tokens, **fields)

    yield make


@pytest.fixture
def finished() -> ReleaseReason:
    return ReleaseReason.FINISHED
