"""The choice against every choice there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from paceline_goodput.choice import LEAST_GAIN, best_items, best_lengths, evened, gains_of


def mean_log_speed(chances: np.ndarray, kept: tuple[int, ...], num_requests: int, seconds: np.ndarray) -> float:
    """As the definition says: each request's expected tokens over the step's time; drafts must pay by a margin."""
    tokens = [1.0 + chances[index, :length].sum() for index, length in enumerate(kept)]
    tokens += [1.0] * (num_requests - len(kept))
    time_s = seconds[num_requests + sum(kept)]
    return float(np.mean([np.log(count / time_s) for count in tokens])) - LEAST_GAIN * any(kept)


@pytest.mark.parametrize("seed", range(40))
def test_no_other_lengths_are_better(seed: int) -> None:
    """Costs rise in steps of any size, some of them flat: not only convex ones."""
    random = np.random.default_rng(seed)
    chances = random.random((3, 4)).cumprod(axis=1)
    lengths = random.integers(0, 5, 3)
    num_requests = 3 + int(random.integers(3))
    rises = random.random(20) * random.integers(0, 2, 20) * random.choice([0.05, 0.3])
    seconds = 1.0 + rises.cumsum()
    fixed_s = float(random.random()) / 10
    chosen = best_lengths(
        chances,
        lengths,
        num_requests=num_requests,
        seconds=lambda rows: seconds[rows.astype(int)],
        fixed_s=fixed_s,
        max_rows=99,
    )
    assert (chosen <= lengths).all()
    scores = {
        kept: mean_log_speed(chances, kept, num_requests, seconds + fixed_s)
        for kept in product(*(range(length + 1) for length in lengths))
    }
    assert scores[tuple(chosen.tolist())] == pytest.approx(max(scores.values()), rel=1e-12)


def test_rows_are_limited() -> None:
    chances = np.array([[0.9, 0.8], [0.7, 0.6]])
    for max_rows, kept in ((2.0, [0, 0]), (3.9, [1, 0]), (4, [1, 1]), (9, [2, 2])):
        chosen = best_lengths(
            chances,
            np.array([2, 2]),
            num_requests=2,
            seconds=lambda rows: np.ones(len(rows)),
            fixed_s=0.0,
            max_rows=max_rows,
        )
        assert chosen.tolist() == kept


def test_of_equal_tokens_the_earlier_are_kept() -> None:
    seconds = lambda rows: 1.0 + 0.2 * np.maximum(rows - 5, 0)  # noqa: E731
    chances = np.zeros((2, 3))
    chosen = best_lengths(chances, np.array([3, 3]), num_requests=2, seconds=seconds, fixed_s=0.0, max_rows=99)
    assert chosen.tolist() == [0, 0], "what brings nothing is not verified"


def test_one_request_is_not_sped_up_at_the_cost_of_many() -> None:
    """Five more tokens in a step that takes 1.3 times as long are more tokens a second, and slow 15 requests down."""
    chances, lengths = np.full((1, 5), 0.99), np.array([5])
    kept = {}
    for num_requests in (1, 16):
        seconds = lambda rows, base=num_requests: 21.0 + 1.2 * (rows - base)  # noqa: E731
        kept[num_requests] = best_lengths(
            chances, lengths, num_requests=num_requests, seconds=seconds, fixed_s=0.0, max_rows=99
        ).tolist()
    assert (16 + 4.95) / (21 + 6) > 16 / 21
    assert kept == {1: [5], 16: [0]}


def test_uncertain_rows_cost_and_bring_their_share() -> None:
    """Twenty drafts that come once in ten steps weigh as much as two that come always."""
    gains = np.full(20, 0.6)
    for price, taken in ((0.2, 20), (0.9, 0)):
        items, speed = best_items(
            gains,
            np.full(20, 0.1),
            num_requests=1,
            seconds=lambda rows, price=price: np.exp(price * (rows - 1)),
            fixed_s=0.0,
            max_rows=99,
        )
        assert len(items) == taken
        assert speed == pytest.approx(max(2 * (0.6 - price) - LEAST_GAIN, 0.0))


def test_gains_add_up_to_the_logarithm_of_the_tokens() -> None:
    chances = np.array([[0.9, 0.5, 0.1], [1.0, 1.0, 1.0]])
    assert np.exp(gains_of(chances).cumsum(axis=1)) == pytest.approx(1.0 + chances.cumsum(axis=1))


def test_trees_are_evened_over_their_nodes() -> None:
    chances = np.array([[0.8, 0.4, 0.0], [0.6, 0.2, 0.1]])
    assert evened(chances, np.array([3, 2])) == pytest.approx(np.array([[0.4] * 3, [0.4] * 3]))
