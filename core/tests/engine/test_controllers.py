from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.api import (
    ControllerCapabilities,
    EngineState,
    PluginError,
    ReleaseReason,
    SpeculationController,
    StepOutcome,
)
from paceline.engine.fixed import Fixed


class Recording(SpeculationController):
    """Answers with ``wanted`` budgets (all equal) and logs."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.states: list[EngineState] = []
        self.outcomes: list[StepOutcome] = []
        self.released: list[tuple[tuple[str, ...], ReleaseReason]] = []

    def budgets(self, state: EngineState) -> np.ndarray:
        self.states.append(state)
        return np.full(len(state.request_ids), self.wanted)

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        self.released.append((request_ids, reason))


class Trimming(Recording):
    def __init__(self, wanted: int, kept: Callable[[np.ndarray], Any]) -> None:
        super().__init__(wanted)
        self.kept = kept
        self.trimmed: list[tuple[list[int], tuple[str, ...]]] = []

    def trim(self, drafts: Any, state: EngineState) -> Any:
        self.trimmed.append((drafts.lengths.tolist(), state.request_ids))
        return self.kept(drafts.lengths)


def test_fixed_grants_its_length_within_the_limits() -> None:
    state = EngineState(
        request_ids=("a", "b", "c"),
        limits=np.array([9, 2, 0]),
        drafted=np.zeros(3),
        accepted=np.zeros(3),
        num_waiting=0,
        free_block_ratio=1.0,
    )
    assert Fixed(4).budgets(state).tolist() == [4, 2, 0]


def test_limits_are_the_room_less_the_targets_own_token_and_each_requests_own(
    harness: Callable[..., Any], fake: Any
) -> None:
    controller = Recording(99)
    engine = harness(draft=lambda request, budget: [], controller=controller, max_tokens=6)
    engine.add([1], "roomy", max_tokens=20)
    engine.add([1], "short", max_tokens=3)
    engine.add([1], "limited", max_tokens=20, draft_limit=2)
    engine.add([1], "off", max_tokens=20, draft_limit=0)
    engine.step()
    engine.step()
    state = controller.states[-1]
    assert dict(zip(state.request_ids, state.limits.tolist(), strict=True)) == {
        "roomy": 6,
        "short": 1,
        "limited": 2,
        "off": 0,
    }
    assert engine.proposer.proposed[0].budgets.tolist() == [6, 1, 2], "who has no budget is not asked"


def test_nobody_is_asked_when_nobody_may_draft(harness: Callable[..., Any]) -> None:
    controller = Recording(3)
    engine = harness(draft=lambda request, budget: [], controller=controller)
    engine.add([1], max_tokens=4, draft_limit=0)
    engine.run()
    assert controller.states == [] and engine.proposer.proposed == []


def test_the_state_shows_history_queue_and_pressure(harness: Callable[..., Any], fake: Any) -> None:
    controller = Recording(2)
    engine = harness(
        draft=lambda request, budget: fake.right_drafts(request, 1) + [0] * (budget - 1),
        controller=controller,
        num_blocks=8,
        max_num_seqs=1,
        enable_prefix_caching=False,
    )
    engine.add([1, 2, 3], "a", max_tokens=12)
    engine.add([5], "b", max_tokens=1)
    for _ in range(3):
        engine.step()
    state = controller.states[-1]
    assert state.request_ids == ("a",) and state.num_waiting == 1
    outcome = controller.outcomes[0]
    assert (outcome.request_ids, outcome.drafted.tolist()) == (("a",), [2])
    assert state.drafted.tolist() == [2] and state.accepted.tolist() == outcome.accepted.tolist()
    assert outcome.num_rows == 3 and outcome.draft_time_s > 0 and outcome.verify_time_s > 0
    assert state.free_block_ratio == 6 / 8


def test_trim_shortens_drafts_and_changes_no_token(harness: Callable[..., Any], fake: Any) -> None:
    controller = Trimming(4, lambda lengths: np.minimum(lengths, 1))
    engine = harness(draft=fake.right_drafts, controller=controller)
    engine.add([1, 2], "a", max_tokens=9)
    engine.add([3], "b", max_tokens=9, draft_limit=0)
    outputs = engine.run()
    assert controller.trimmed[0] == ([4], ("a",))
    assert {tuple(outcome.drafted) for outcome in controller.outcomes} == {(1,)}
    assert engine.tokens("a") == fake.continuation([1, 2], 9) and engine.tokens("b") == fake.continuation([3], 9)
    assert outputs["a"].metrics.num_accepted_tokens == outputs["a"].metrics.num_draft_tokens == 4


EVERY_STEP = ControllerCapabilities(every_step=True)


@pytest.mark.parametrize(("wants", "heard_of"), [(None, [2]), (EVERY_STEP, [0, 2, 0])])
def test_steps_that_drafted_nothing_are_told_to_those_who_want_them(
    harness: Callable[..., Any], fake: Any, wants: ControllerCapabilities | None, heard_of: list[int]
) -> None:
    """Three steps: the prompt, one with drafts, and one whose only token is the target's own."""
    controller = Recording(2)
    engine = harness(draft=fake.right_drafts, controller=controller, controller_wants=wants)
    engine.add([1, 2, 3], "a", max_tokens=5)
    engine.run()
    assert [int(outcome.drafted.sum()) for outcome in controller.outcomes] == heard_of
    assert all(outcome.verify_time_s > 0 for outcome in controller.outcomes)


def test_rows_of_prompts_are_told_apart(harness: Callable[..., Any], fake: Any) -> None:
    controller = Recording(2)
    engine = harness(draft=fake.right_drafts, controller=controller, controller_wants=EVERY_STEP)
    engine.add([1, 2, 3], "a", max_tokens=9)
    engine.step()
    engine.add([4, 5], "b", max_tokens=9)
    engine.step()
    engine.step()
    rows = [(outcome.num_rows, outcome.num_prompt_rows) for outcome in controller.outcomes]
    assert rows == [(3, 3), (3 + 2, 2), (3 + 3, 0)]


def test_requests_that_end_or_pause_are_released(harness: Callable[..., Any], fake: Any) -> None:
    controller = Recording(1)
    engine = harness(draft=fake.right_drafts, controller=controller, num_blocks=6, enable_prefix_caching=False)
    engine.add([1, 2, 3, 4], "first", max_tokens=14)
    engine.add([5, 6, 7, 8], "last", max_tokens=14)
    engine.run()
    engine.add([3], "gone", max_tokens=9)
    engine.step()
    engine.engine.abort("gone")
    assert engine.engine.stats.num_preemptions == 1
    assert controller.released == [
        (("last",), ReleaseReason.PREEMPTED),
        (("first",), ReleaseReason.FINISHED),
        (("last",), ReleaseReason.FINISHED),
        (("gone",), ReleaseReason.ABORTED),
    ]


def test_a_fault_in_release_names_the_controller(harness: Callable[..., Any], fake: Any) -> None:
    controller = Recording(1)
    controller.release = lambda request_ids, reason: {}[reason]  # type: ignore[method-assign]
    engine = harness(draft=fake.right_drafts, controller=controller)
    engine.add([1], "a", max_tokens=2)
    with pytest.raises(PluginError, match=r"release.*KeyError"):
        engine.run()


def test_a_controller_that_listens_to_nothing_is_not_called(harness: Callable[..., Any], fake: Any) -> None:
    speculation = harness(draft=fake.right_drafts).engine._speculation
    assert (speculation._learns, speculation._forgets) == (False, False)


def test_a_controller_that_does_not_trim_is_not_asked(harness: Callable[..., Any], fake: Any) -> None:
    engine = harness(draft=fake.right_drafts, controller=Recording(2))
    assert engine.engine._speculation._trims is False
    assert harness(draft=fake.right_drafts, controller=Trimming(2, lambda n: n)).engine._speculation._trims is True


@pytest.mark.parametrize(
    ("controller", "message"),
    [
        (Recording(-1), r"budgets\[0\] is -1; it must be 0 or more"),
        (Trimming(2, lambda lengths: lengths + 1), r"trimmed lengths\[0\] is 3; it must be between 0 and the draft's"),
    ],
)
def test_wrong_answers_stop_the_step_and_harm_nobody(
    harness: Callable[..., Any], fake: Any, controller: Recording, message: str
) -> None:
    engine = harness(draft=fake.right_drafts, controller=controller)
    engine.add([1, 2], "a", max_tokens=5)
    engine.step()
    with pytest.raises(PluginError, match=message):
        engine.step()
    controller.wanted = 0
    engine.run()
    assert engine.tokens("a") == fake.continuation([1, 2], 5)
