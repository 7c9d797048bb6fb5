"""The cost curve: what it says between, below and beyond what was measured, and what does not mislead it."""

from __future__ import annotations

import numpy as np
import pytest

from paceline_goodput.costs import LIFETIME, CostCurve


def learnt(seconds: dict[int, float], times: int = 150) -> CostCurve:
    curve = CostCurve()
    for _ in range(times):
        for count, value in seconds.items():
            curve.observe(count, value)
    return curve


def test_before_anything_is_measured_all_cost_the_same() -> None:
    assert CostCurve()(np.array([1, 50])).tolist() == [1.0, 1.0]


def test_one_place_is_level() -> None:
    assert learnt({4: 0.02})(np.array([1, 4, 100])) == pytest.approx(0.02)


def test_between_places_it_is_straight() -> None:
    curve = learnt({4: 0.010, 8: 0.020, 16: 0.022})
    assert curve(np.array([4, 6, 8, 12, 16])) == pytest.approx([0.010, 0.015, 0.020, 0.021, 0.022], rel=1e-3)
    assert curve.at(6) == pytest.approx(0.015, rel=1e-3)


def test_beyond_it_goes_on_with_the_nearer_slope() -> None:
    curve = learnt({4: 0.015, 16: 0.021, 32: 0.040})
    assert curve.at(64) == pytest.approx(0.040 + 32 * (0.040 - 0.021) / 16, rel=1e-3)
    assert curve.at(2) == pytest.approx(0.015 - 2 * (0.021 - 0.015) / 12, rel=1e-3)


def test_beyond_it_never_rises_faster_than_in_proportion() -> None:
    curve = learnt({20: 0.010, 30: 0.030})
    assert curve.at(60) == pytest.approx(0.060, rel=1e-3)
    assert curve.at(5) > 0


def test_zero_is_a_place() -> None:
    curve = learnt({0: 0.001, 4: 0.003})
    assert curve(np.array([0, 2, 4])) == pytest.approx([0.001, 0.002, 0.003], rel=1e-3)


def test_more_rows_never_seem_cheaper() -> None:
    curve = learnt({2: 0.030, 6: 0.015})
    assert curve(np.array([1, 2, 6])) == pytest.approx(0.015, rel=1e-3)


def test_a_pause_of_the_machine_moves_it_little() -> None:
    curve = learnt({4: 0.010, 8: 0.012})
    curve.observe(4, 10.0)
    assert curve(np.array([4, 8])) == pytest.approx([0.010, 0.012], rel=0.06)


def test_a_pause_at_the_first_measurement_is_made_up_for() -> None:
    curve = learnt({4: 0.010})
    curve.observe(8, 10.0)
    assert curve.at(8) <= 0.0126
    for _ in range(8):
        curve.observe(8, 0.010)
    assert curve.at(8) == pytest.approx(0.010, rel=0.04)


def test_a_lasting_change_is_followed_and_taken_along() -> None:
    """Contexts grow: what is measured at 4 rows says something of 8."""
    curve = learnt({4: 0.010, 8: 0.012})
    for _ in range(40):
        curve.observe(4, 0.015)
    assert curve.at(4) == pytest.approx(0.015, rel=0.03)
    assert 0.0145 < curve.at(8) < 0.018


def test_places_that_are_not_visited_are_forgotten_but_for_two() -> None:
    curve = learnt({4: 0.010, 8: 0.012, 90: 0.090})
    assert curve.largest == pytest.approx(90)
    for _ in range(LIFETIME):
        curve.observe(4, 0.010)
        curve.observe(8, 0.012)
    assert curve.largest == pytest.approx(8)
    for _ in range(2 * LIFETIME):
        curve.observe(4, 0.010)
    assert curve.largest == pytest.approx(8)


def test_a_clock_that_stands_still_harms_nothing() -> None:
    curve = learnt({0: 0.0, 4: 0.0})
    assert (curve(np.array([0, 4, 8])) >= 0).all()


def test_below_all_others_a_place_starts_from_what_it_took() -> None:
    """In proportion, nothing would be left at 0; what a step takes without drafts is not nothing."""
    curve = learnt({1: 0.001, 4: 0.004})
    assert curve.at(0) == pytest.approx(0.0, abs=1e-6)
    curve.observe(0, 0.0005)
    assert curve.at(0) == pytest.approx(0.0005)
