"""The controller in a simulated engine whose costs and chances are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pluggy
import pytest
from pydantic import ValidationError

from paceline.api import ReleaseReason, TargetFacts, hooks
from paceline_goodput import plugin
from paceline_goodput.controller import PROBE_SHARE
from paceline_goodput.plugin import GoodputOptions

SIXTEEN = [f"r{number}" for number in range(16)]


def level(rows: int) -> float:
    return 0.015


def in_proportion(rows: int) -> float:
    return 0.001 * rows


def saturated(rows: int) -> float:
    """Level up to eight rows, then each costs its share."""
    return 0.015 + 0.0012 * max(rows - 8, 0)


def mean_kept(steps: list[Any]) -> float:
    return float(np.mean([step.kept for step in steps]))


@pytest.mark.parametrize("ids", [["a"], SIXTEEN])
def test_where_rows_cost_nothing_it_drafts_fully(simulate: Callable[..., Any], ids: list[str]) -> None:
    steps = simulate(level, 0.3).run(ids, 60)
    assert mean_kept(steps[8:]) == 5


def test_where_rows_cost_their_share_it_stops(simulate: Callable[..., Any]) -> None:
    steps = simulate(in_proportion, 0.5, noise=0.02).run(SIXTEEN, 300)
    assert mean_kept(steps[40:]) < 0.1
    plain_s = in_proportion(16) + 1e-4
    assert np.mean([step.seconds for step in steps[40:]]) < 1.03 * plain_s


def test_the_first_step_measures_what_drafts_are_weighed_against(simulate: Callable[..., Any]) -> None:
    simulation = simulate(level, 1.0)
    first, second = simulation.run(SIXTEEN, 2)
    assert sum(first.budgets) == 0 and sum(second.kept) > 0
    fewer, _ = simulation.run(["r0", "r1"], 2)
    assert sum(fewer.budgets) == 0


def test_rows_grow_by_half_at_most(simulate: Callable[..., Any]) -> None:
    steps = simulate(level, 0.9).run(SIXTEEN, 12)
    rows = [16 + sum(step.kept) for step in steps]
    assert max(rows) == 96
    assert all(after <= 1.5 * max(rows[: index + 1]) for index, after in enumerate(rows[1:]))


def test_up_to_the_knee_it_drafts_what_is_free(simulate: Callable[..., Any]) -> None:
    steps = simulate(saturated, 0.5, noise=0.01).run(["a", "b", "c", "d"], 200)
    assert 0.8 < mean_kept(steps[60:]) < 2.0


def test_drafts_go_to_the_requests_that_are_right(simulate: Callable[..., Any]) -> None:
    chances = {"good": 0.95, "bad": 0.05}
    steps = simulate(saturated, lambda name: chances[name[:-1]]).run(["good1", "bad1", "good2", "bad2"], 120)
    kept = np.mean([step.kept for step in steps[60:]], axis=0)
    assert kept[[0, 2]].min() > 1.5 and kept[[1, 3]].max() < 0.6


def test_long_drafts_are_kept_where_short_ones_are_bad(simulate: Callable[..., Any]) -> None:
    """A proposer that knows: half of its drafts are one token and wrong, the others five and right."""
    simulation = simulate(in_proportion, 1.0, delivered=lambda name, budget, random: random.choice([1, budget]))
    simulation._accepted = lambda name, length: length if length > 1 else 0
    steps = simulation.run(["a", "b"], 200)
    kept = [length for step in steps[80:] for length in step.kept]
    assert kept.count(1) < 0.15 * len(kept)


def test_it_recovers_when_drafts_become_right(simulate: Callable[..., Any]) -> None:
    chance = {"now": 0.1}
    simulation = simulate(lambda rows: 0.015 + 0.0005 * max(rows - 8, 0), lambda name: chance["now"])
    assert mean_kept(simulation.run(SIXTEEN, 200)[100:]) < 0.1
    chance["now"] = 1.0
    assert mean_kept(simulation.run(SIXTEEN, 400)[300:]) > 3


def test_one_request_is_drafted_for_again_after_a_bad_stretch(simulate: Callable[..., Any]) -> None:
    chance = {"now": 0.9}
    simulation = simulate(lambda rows: 0.0146 + 0.0002 * rows, lambda name: chance["now"])
    simulation.run(["a"], 50)
    chance["now"] = 0.0
    simulation.run(["a"], 30)
    chance["now"] = 0.9
    assert mean_kept(simulation.run(["a"], 30)[10:]) > 4


@pytest.mark.parametrize("seconds", [in_proportion, saturated])
def test_probes_cost_a_bounded_share(simulate: Callable[..., Any], seconds: Callable[[int], float]) -> None:
    steps = simulate(seconds, 0.0).run(SIXTEEN, 800)[200:]
    plain_s = seconds(16) + 1e-4
    extra_s = sum(step.seconds - plain_s for step in steps)
    assert 0 < extra_s < 1.5 * PROBE_SHARE * plain_s * len(steps)


def test_probes_take_turns(simulate: Callable[..., Any]) -> None:
    steps = simulate(in_proportion, 0.0).run(SIXTEEN, 1500)[300:]
    probed = [index for step in steps for index in np.flatnonzero(step.kept).tolist()]
    assert len(probed) > 32
    assert set(probed[-16:]) == set(range(16))


def test_a_probe_that_brings_no_draft_is_followed_by_one_of_another(simulate: Callable[..., Any]) -> None:
    simulation = simulate(in_proportion, 0.0, delivered=lambda name, budget, random: budget * (name != "r3"))
    steps = simulation.run(SIXTEEN, 1200)[300:]
    asked = [index for step in steps for index in np.flatnonzero(step.budgets).tolist()]
    assert 3 in asked and asked.count(3) < len(asked) / 4


def test_where_drafting_is_slow_by_length_drafts_get_shorter(simulate: Callable[..., Any]) -> None:
    slow = {"draft_s": lambda depth: 0.0002 + 0.004 * depth}
    short = simulate(level, 0.6, **slow).run(["a"], 200)[80:]
    long = simulate(level, 0.95, **slow).run(["a"], 200)[80:]
    assert mean_kept(short) < 2.5 < mean_kept(long)


def test_trees_are_kept_whole_or_not_at_all(simulate: Callable[..., Any]) -> None:
    for seconds in (level, saturated):
        steps = simulate(seconds, 0.6, parents=True).run(["a", "b", "c"], 80)
        assert {length for step in steps for length in step.kept} <= {0, 5}
    assert mean_kept(simulate(level, 0.6, parents=True).run(["a"], 40)[8:]) == 5


def test_steps_with_prompts_are_no_measure(simulate: Callable[..., Any]) -> None:
    simulation = simulate(level, 0.9)
    simulation.run(SIXTEEN, 20)
    before = simulation.controller._verifying.at(16)
    simulation.seconds = lambda rows: 5.0
    simulation.run(SIXTEEN, 20, num_prompt_rows=300)
    assert simulation.controller._verifying.at(16) == before


def test_answers_follow_from_what_was_told(simulate: Callable[..., Any]) -> None:
    first, second = (simulate(saturated, 0.6, noise=0.05).run(SIXTEEN[:5], 150) for _ in range(2))
    assert first == second


def test_a_request_that_comes_again_starts_anew(simulate: Callable[..., Any]) -> None:
    simulation = simulate(level, lambda name: float(name == "b"))
    simulation.run(["a", "b"], 40)
    controller = simulation.controller
    assert controller._requests.own[controller._requests.rows(["a"])][0] < -1
    controller.release(("a", "unknown"), ReleaseReason.FINISHED)
    assert controller._requests.own[controller._requests.rows(["a"])][0] == 0


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValidationError, match="interval"):
        GoodputOptions.model_validate({"interval": 3})


def test_declaration() -> None:
    manager = pluggy.PluginManager("paceline")
    manager.add_hookspecs(hooks)
    manager.register(plugin)
    manager.check_pending()
    ((spec,),) = manager.hook.paceline_speculation_controllers()
    target = TargetFacts.__new__(TargetFacts)
    assert (spec.name, spec.requires_api) == ("goodput", ">=0.1.1,<0.2")
    assert spec.describe(spec.options(), target).every_step
