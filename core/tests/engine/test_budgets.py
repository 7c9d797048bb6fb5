from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.budgets import fit_budgets


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 30))
def test_the_largest_budgets_are_lowered_to_one_level_and_nothing_is_wasted(budgets: list[int], total: int) -> None:
    given_budgets = np.array(budgets, dtype=np.int64)
    fitted = fit_budgets(given_budgets, total).tolist()

    assert given_budgets.tolist() == budgets
    assert sum(fitted) == min(sum(budgets), total)
    assert all(0 <= fit <= asked for fit, asked in zip(fitted, budgets, strict=True))
    cut = [fit for fit, asked in zip(fitted, budgets, strict=True) if fit < asked]
    level = min(cut, default=0)
    assert all(fit <= level + 1 for fit in fitted) or not cut
    assert cut == sorted(cut, reverse=True), "what is left over goes to the first"


def test_example() -> None:
    assert fit_budgets(np.array([5, 1, 5, 4]), 10).tolist() == [3, 1, 3, 3]
    assert fit_budgets(np.array([5, 1, 5, 4]), 9).tolist() == [3, 1, 3, 2]
