"""The draft lengths at which requests are the fastest: pure functions.

Speeds are compared by their geometric mean over the requests (the mean of their logarithms). A token is worth the
less to a request the more it already gets of a step, so one that is easy to draft for is not sped up at the cost of all
others; with the tokens a second in sum it would be.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["best_items", "best_lengths", "evened", "gains_of"]

LEAST_GAIN = 0.02
"""Requests must get faster by this part, or nothing is drafted: less is within the error of what is expected."""
Seconds = Callable[[np.ndarray], np.ndarray]
"""What a target pass of so many rows takes."""


def gains_of(chances: np.ndarray) -> np.ndarray:
    """What each drafted token adds to the logarithm of the tokens that its request may expect, ``[..., width]``.

    Args:
        chances: float64 ``[..., width]``, how likely each token is to be accepted.
    """
    logs: np.ndarray = np.log1p(chances.cumsum(axis=-1))
    logs[..., 1:] -= logs[..., :-1].copy()
    return logs


def evened(chances: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """``chances``, each replaced by the mean over its draft: for drafts that are kept whole or not at all.

    Args:
        chances: float64 ``[..., width]``, how likely each token is to be accepted.
        lengths: int64 ``[...]``, tokens of each draft.
    """
    inside = np.arange(chances.shape[-1]) < lengths[..., None]
    mean = (chances * inside).sum(axis=-1) / np.maximum(lengths, 1)
    return np.broadcast_to(mean[..., None], chances.shape)


def best_items(
    gains: np.ndarray, rows: np.ndarray, *, num_requests: int, seconds: Seconds, fixed_s: float, max_rows: float
) -> tuple[np.ndarray, float]:
    """Which tokens to ask for, where it is not sure what will be drafted.

    All numbers of items are tried, best first (Liu et al. 2024), so nothing is asked of the shape of ``seconds``.

    Args:
        gains: float64 ``[items]``, see ``gains_of``.
        rows: float64 ``[items]``, how likely each token is to be drafted at all, and so to need a row.
        num_requests: Decoding requests, each with a row and a token of its own.
        seconds: What a target pass of so many rows takes.
        fixed_s: What the step takes besides.
        max_rows: Most rows that may be expected.

    Returns:
        Indices of the items, and the mean logarithm of the requests' speeds in tokens a second.
    """
    order = (-gains).argsort(kind="stable")
    num_rows = np.concatenate([[0.0], rows[order].cumsum()]) + num_requests
    num_rows = num_rows[: max(int(num_rows.searchsorted(max_rows, side="right")), 1)]
    speeds = -np.log(seconds(num_rows) + fixed_s)
    speeds[1:] += (rows * gains)[order].cumsum()[: len(num_rows) - 1] / num_requests - LEAST_GAIN
    best = int(speeds.argmax())
    return order[:best], float(speeds[best])


def best_lengths(
    chances: np.ndarray,
    lengths: np.ndarray,
    *,
    num_requests: int,
    seconds: Seconds,
    fixed_s: float,
    max_rows: float,
) -> np.ndarray:
    """How many of each request's drafted tokens to verify, int64 ``[drafts]``.

    Args:
        chances: float64 ``[drafts, width]``, how likely each token is to be accepted; not rising along a row.
        lengths: int64 ``[drafts]``, tokens drafted, at most ``width``.
        num_requests: Decoding requests, those without a draft included.
        seconds: What a target pass of so many rows takes.
        fixed_s: What the step takes besides.
        max_rows: Most rows.
    """
    width = chances.shape[1]
    gains = np.where(np.arange(width) < lengths[:, None], gains_of(chances), -1.0).ravel()
    most = min(int(lengths.sum()), int(max_rows) - num_requests)
    order = (-gains).argsort(kind="stable")[:most]  # of equal ones the earlier first: what is kept is a beginning
    speeds = -np.log(seconds(np.arange(num_requests, num_requests + most + 1)) + fixed_s)
    speeds[1:] += gains[order].cumsum() / num_requests - LEAST_GAIN
    return np.bincount(order[: int(speeds.argmax())] // width, minlength=len(lengths))
