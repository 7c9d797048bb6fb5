"""A controller that follows what was accepted, and what it becomes by one fault each."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from paceline.api import (
    ControllerCapabilities,
    Drafts,
    EngineState,
    ReleaseReason,
    SpeculationController,
    StepOutcome,
    TargetFacts,
)


class Following(SpeculationController):
    """No fault: grants one token more than was accepted last."""

    def __init__(self, context: Any) -> None:
        self.max_tokens: int = context.max_tokens
        self.last: dict[str, int] = {}

    @classmethod
    def capabilities(cls, target: TargetFacts) -> ControllerCapabilities:
        return ControllerCapabilities()

    def budgets(self, state: EngineState) -> np.ndarray:
        self.last = {name: self.last.get(name, self.max_tokens) for name in state.request_ids}
        wanted = np.array([self.last[name] + 1 for name in state.request_ids], dtype=np.int64)
        return np.minimum(np.minimum(wanted, self.max_tokens), state.limits)

    def observe(self, outcome: StepOutcome) -> None:
        self.last.update(zip(outcome.request_ids, outcome.accepted.tolist(), strict=True))


class Negative(Following):
    """takes away more than there is"""

    def budgets(self, state: EngineState) -> np.ndarray:
        return super().budgets(state) - 1


class OneForAll(Following):
    """answers with one number"""

    def budgets(self, state: EngineState) -> np.ndarray:
        return np.array(self.max_tokens)


class Floats(Following):
    """answers with a mean, which is no integer"""

    def budgets(self, state: EngineState) -> np.ndarray:
        return super().budgets(state) * 0.5


class KeepsTooMuch(Following):
    """keeps more tokens than were drafted"""

    def trim(self, drafts: Drafts, state: EngineState) -> np.ndarray:
        return np.full(len(drafts.lengths), self.max_tokens)


class WritesLimits(Following):
    """lowers the limits in place"""

    def budgets(self, state: EngineState) -> np.ndarray:
        np.minimum(state.limits, 2, out=state.limits)
        return state.limits


class KnowsAll(Following):
    """fails on an outcome of a request that it has not been asked about since"""

    def budgets(self, state: EngineState) -> np.ndarray:
        self.last = {name: self.last[name] if self.last else self.max_tokens for name in state.request_ids}
        return np.minimum(self.max_tokens, state.limits)


class Clocked(Following):
    """goes by the time of day"""

    def budgets(self, state: EngineState) -> np.ndarray:
        return np.minimum(state.limits, time.perf_counter_ns() // 100 % 7)


class Leaks(Following):
    """keeps what it learnt of requests that are gone"""

    def budgets(self, state: EngineState) -> np.ndarray:
        known = dict(self.last)
        answer = super().budgets(state)
        self.last = known | self.last
        return answer


class MissesStrangers(Following):
    """fails when it is to forget a request that it never knew"""

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        for name in request_ids:
            del self.last[name]


class ExpectsDrafts(Following):
    """wants to hear of every step, and fails on one that drafted nothing"""

    @classmethod
    def capabilities(cls, target: TargetFacts) -> ControllerCapabilities:
        return ControllerCapabilities(every_step=True)

    def observe(self, outcome: StepOutcome) -> None:
        assert outcome.request_ids[0]
        super().observe(outcome)


HONEST = Following
CAUGHT_BY = {
    Negative: "test_answers_fit",
    OneForAll: "test_answers_fit",
    Floats: "test_answers_fit",
    KeepsTooMuch: "test_answers_fit",
    WritesLimits: "test_lent_limits_are_not_changed",
    KnowsAll: "test_tokens_are_the_same",
    Clocked: "test_answers_follow_from_what_was_told",
    Leaks: "test_memory_does_not_grow",
    MissesStrangers: "test_release_takes_any_request",
    ExpectsDrafts: "test_answers_fit",
}
