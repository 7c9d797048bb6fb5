"""Sharing a number of rows among requests."""

from __future__ import annotations

import numpy as np

__all__ = ["fit_budgets"]


def fit_budgets(budgets: np.ndarray, total: int) -> np.ndarray:
    """Lower the largest budgets until their sum is at most ``total``.

    Args:
        budgets: int64 ``[requests]``, each >= 0.
        total: Bound of the sum, >= 0.

    Returns:
        int64 ``[requests]``: ``min(budget, level)`` for the highest common level that fits; what is left goes one by
        one to the first requests that the level cut.
    """
    if int(budgets.sum()) <= total:
        return budgets
    level, left = 0, total
    for index, value in enumerate(np.sort(budgets)):
        sharers = len(budgets) - index
        if (value - level) * sharers > left:
            level += left // sharers
            left %= sharers
            break
        left -= (value - level) * sharers
        level = value
    out = np.minimum(budgets, level)
    cut = np.flatnonzero(budgets > level)[:left]
    out[cut] += 1
    return out
