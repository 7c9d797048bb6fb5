"""What a speculation controller is held to: numbers in range, from what it was told, for whoever is there."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.api import (
    ControllerCapabilities,
    ControllerContext,
    Drafts,
    EngineState,
    ReleaseReason,
    SpeculationController,
    StepOutcome,
)
from paceline.testing import helpers
from paceline.testing.contract import Contract
from paceline.testing.engines import Ask, prompts, run
from paceline.testing.memory import check_memory

__all__ = ["ControllerContract"]

MAX_TOKENS = 5


class Traffic:
    """Requests that come, draft and go, as a controller sees them.

    Args:
        controller: The controller.
        seed: Of what happens.
        every_step: Whether it hears of steps that drafted nothing.
    """

    def __init__(self, controller: SpeculationController, seed: int, every_step: bool = False) -> None:
        self.controller = controller
        self._every_step = every_step
        self._random = np.random.default_rng(seed)
        self._live: dict[str, tuple[int, int]] = {}  # id -> drafted and accepted so far
        self._num_begun = 0
        self.answers: list[list[int]] = []

    def step(self) -> None:
        """One step of an engine, with every answer checked."""
        self._come_and_go()
        state = self._state()
        budgets = np.asarray(self.controller.budgets(state))
        self._check_lent(state)
        _check_lengths("budgets", budgets, len(state.request_ids), None)
        self.answers.append(budgets.tolist())
        lengths = self._random.integers(0, np.minimum(budgets, state.limits) + 1)
        drafts = Drafts.from_lists([[1] * int(length) for length in lengths])
        kept = np.asarray(self.controller.trim(drafts, state))
        _check_lengths("trim", kept, len(lengths), lengths)
        self.answers.append(kept.tolist())
        self._report(state, kept)

    def _come_and_go(self) -> None:
        gone = tuple(request_id for request_id in self._live if self._random.random() < 0.2)
        for request_id in gone:
            del self._live[request_id]
        if gone:
            self.controller.release(gone, ReleaseReason.FINISHED)
        while not self._live or self._random.random() < 0.6:
            self._live[f"request-{self._num_begun:06}"] = (0, 0)
            self._num_begun += 1

    def _state(self) -> EngineState:
        counts = np.array(list(self._live.values()), dtype=np.int64).reshape(-1, 2)
        limits = self._random.integers(0, 12, len(self._live))
        limits[0] = max(limits[0], 1)  # nobody is asked where nobody may draft
        return EngineState(
            request_ids=tuple(self._live),
            limits=limits,
            drafted=counts[:, 0].copy(),
            accepted=counts[:, 1].copy(),
            num_waiting=int(self._random.integers(3)),
            free_block_ratio=float(self._random.random()),
        )

    def _check_lent(self, state: EngineState) -> None:
        counts = np.array(list(self._live.values()), dtype=np.int64).reshape(-1, 2)
        unchanged = (state.drafted == counts[:, 0]).all() and (state.accepted == counts[:, 1]).all()
        assert unchanged, "the controller wrote into the state that it was lent"

    def _report(self, state: EngineState, kept: np.ndarray) -> None:
        accepted = self._random.integers(0, kept + 1)
        for request_id, drafted, right in zip(state.request_ids, kept.tolist(), accepted.tolist(), strict=True):
            before = self._live[request_id]
            self._live[request_id] = (before[0] + drafted, before[1] + right)
        some = np.flatnonzero(kept)
        num_prompt_rows = int(self._random.integers(0, 20)) * int(self._random.random() < 0.2)
        if len(some) or self._every_step:
            outcome = StepOutcome(
                request_ids=tuple(state.request_ids[index] for index in some),
                drafted=kept[some],
                accepted=accepted[some],
                num_rows=int(kept.sum()) + len(kept) + num_prompt_rows,
                draft_time_s=float(self._random.random()) / 100,
                verify_time_s=float(self._random.random()) / 100,
                num_prompt_rows=num_prompt_rows,
            )
            self.controller.observe(outcome)


class ControllerContract(Contract):
    """Tests of a speculation controller."""

    kind = "controller"

    def choice(self) -> dict[str, Any]:
        """The configuration's fields."""
        return {"controller": self.plugin, "controller_options": dict(self.options)}

    def build(self, max_tokens: int = MAX_TOKENS) -> SpeculationController:
        """A new controller."""
        with self.plain() as llm:
            context = ControllerContext(target=llm.built.facts, max_tokens=max_tokens)
        controller: SpeculationController = self.load().build(context)
        return controller

    def traffic(self, seed: int, max_tokens: int = MAX_TOKENS) -> Traffic:
        """Traffic for a new controller."""
        with self.plain() as llm:
            wants: ControllerCapabilities = self.load().describe(llm.built.facts)
        return Traffic(self.build(max_tokens), seed, wants.every_step)

    def test_answers_fit(self) -> None:
        """Budgets and trimmed lengths are integers in range, one for each request, whoever comes and goes."""
        for seed in range(10):
            traffic = self.traffic(seed, 1 + seed)
            for _ in range(60):
                traffic.step()

    def test_release_takes_any_request(self) -> None:
        """Unknown ids and repeats are fine, and one that was preempted comes again under its id."""
        controller = self.build()
        for reason in ReleaseReason:
            controller.release(("nobody", "a", "a"), reason)
            budgets = np.asarray(controller.budgets(_state_of(("a", "b"), [3, 9])))
            _check_lengths("budgets", budgets, 2, None)
            controller.release(("a",), reason)
            controller.release(("a", "b"), reason)

    def test_answers_follow_from_what_was_told(self) -> None:
        """The same states and outcomes lead to the same answers: no clock, no unseeded noise."""
        first, second = self.traffic(3), self.traffic(3)
        for _ in range(100):
            first.step()
            second.step()
            assert first.answers == second.answers, f"{first.answers[-1]} once, {second.answers[-1]} then"

    def test_lent_limits_are_not_changed(self) -> None:
        """``budgets`` leaves the limits as they are."""
        state = _state_of(("a", "b", "c"), [0, 3, 9])
        self.build().budgets(state)
        limits = state.limits
        assert limits.tolist() == [0, 3, 9], f"budgets changed the limits [0, 3, 9] to {limits.tolist()}; copy them"

    def test_memory_does_not_grow(self) -> None:
        """Requests that are gone are forgotten: they are released, and no longer in the state."""
        traffic = self.traffic(0)
        check_memory(traffic.controller, lambda: _steps(traffic, 20), rounds=25, requests_per_round=20)

    def test_tokens_are_the_same(self) -> None:
        """With a proposer that is often right, requests emit what they emit without speculation."""
        asks = [Ask(tokens=tokens, max_tokens=24) for tokens in prompts()]
        with self.plain() as llm:
            expected = run(llm, asks)
        truth = [[*ask.tokens, *tokens] for ask, tokens in zip(asks, expected, strict=True)]
        proposer = {"proposer": helpers.NAME, "proposer_options": {"truth": truth}}
        for settings in ({}, {"max_num_seqs": 2}, {"num_gpu_blocks_override": 13}):
            with self.engine(num_speculative_tokens=MAX_TOKENS, **proposer, **settings) as llm:
                assert run(llm, asks) == expected, "other tokens are emitted under the controller than without it"


def _state_of(request_ids: tuple[str, ...], limits: list[int]) -> EngineState:
    return EngineState(
        request_ids=request_ids,
        limits=np.array(limits, dtype=np.int64),
        drafted=np.zeros(len(limits), dtype=np.int64),
        accepted=np.zeros(len(limits), dtype=np.int64),
        num_waiting=0,
        free_block_ratio=1.0,
    )


def _steps(traffic: Traffic, count: int) -> None:
    for _ in range(count):
        traffic.step()
    traffic.answers.clear()


def _check_lengths(hook: str, values: np.ndarray, count: int, longest: np.ndarray | None) -> None:
    fits = np.issubdtype(values.dtype, np.integer) and values.shape == (count,)
    assert fits, f"{hook} returned {values.dtype} {list(values.shape)} for {count} requests; return int64 [{count}]"
    assert (values >= 0).all(), f"{hook} returned {values.tolist()}; numbers must be 0 or more"
    if longest is not None:
        assert (values <= longest).all(), f"{hook} returned {values.tolist()} for drafts of {longest.tolist()} tokens"
