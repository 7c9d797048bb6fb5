"""What a step costs by a count (rows of the target pass, or longest draft), learnt from steps."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import numpy as np

__all__ = ["CostCurve"]

GAIN = 0.1
"""Weight of a new measurement at its own place."""
SHARED_GAIN = 0.05
"""Part of a change that is taken for all places: longer contexts and busy machines slow every step."""
MOST_RISE = 1.5
"""A measurement counts for at most this many times what was known: a pause of the machine is no cost."""
NUM_TRUSTED = 4
"""Measurements at a place before a change there says something of others."""
LEAST_S = 1e-7
"""What no clock tells from nothing."""
LIFETIME = 128
"""Measurements after which a place that was not visited is forgotten."""


@dataclass(slots=True)
class _Place:
    count: float
    seconds: float
    num_seen: int = 0
    last_seen: int = 0


class CostCurve:
    """Seconds by count, piecewise linear and never falling: ``curve(counts)``.

    Places lie at each count up to 8 and at four per doubling above. Beyond those visited the curve goes on with the
    slope of their nearer half, at most in proportion to the count; with one place it is level, and with none it is 1.
    Pauses only ever add to a time, so where more rows were seen to take less, the smaller time holds.
    """

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        self._num_observed = 0
        self._points: tuple[list[float], list[float]] | None = None

    @property
    def largest(self) -> float:
        """The largest count visited; 0 before the first."""
        return max((place.count for place in self._places.values()), default=0.0)

    def observe(self, count: int, seconds: float) -> None:
        """Learn what a step took."""
        self._num_observed += 1
        seconds = max(seconds, LEAST_S)
        index = _place_index(count)
        place = self._places.get(index)
        if place is None:
            place = self._places[index] = _Place(count, max(self._expected(count, seconds), LEAST_S))
        self._correct(place, count, min(seconds, MOST_RISE * place.seconds))
        self._forget()
        self._points = None

    def _expected(self, count: int, seconds: float) -> float:
        """What a place starts from: what the curve says, below all others no more than the least of them."""
        if not self._places:
            return seconds
        smallest = min(place.count for place in self._places.values())
        return self.at(count) if count >= smallest else min(seconds, self.at(smallest))

    def _correct(self, place: _Place, count: int, seconds: float) -> None:
        if place.num_seen >= NUM_TRUSTED:
            self._share(place, 1.0 + SHARED_GAIN * (seconds / place.seconds - 1.0))
        place.num_seen += 1
        place.last_seen = self._num_observed
        gain = max(GAIN, 2.0 / (place.num_seen + 3))  # the first counts for as much as what was expected
        place.seconds += gain * (seconds - place.seconds)
        place.count += gain * (count - place.count)

    def _share(self, place: _Place, factor: float) -> None:
        for other in self._places.values():
            if other is not place:
                other.seconds *= factor

    def _forget(self) -> None:
        index, oldest = min(self._places.items(), key=lambda item: item[1].last_seen)
        if len(self._places) > 2 and self._num_observed - oldest.last_seen > LIFETIME:
            del self._places[index]

    def __call__(self, counts: np.ndarray) -> np.ndarray:
        """Float64 seconds for each of ``counts``."""
        if self._points is None:
            self._points = self._lay_out()
        return np.asarray(np.interp(counts, *self._points))

    def at(self, count: float) -> float:
        """Seconds for one count."""
        if self._points is None:
            self._points = self._lay_out()
        return float(np.interp(count, *self._points))

    def _lay_out(self) -> tuple[list[float], list[float]]:
        if not self._places:
            return [0.0], [1.0]
        places = [self._places[index] for index in sorted(self._places)]
        counts, seconds = [place.count for place in places], [place.seconds for place in places]
        for index in range(len(seconds) - 2, -1, -1):
            seconds[index] = min(seconds[index], seconds[index + 1])
        return _extended(counts, seconds)


def _place_index(count: int) -> int:
    return count if count < 8 else int(4 * log2(count)) - 4


def _extended(counts: list[float], seconds: list[float]) -> tuple[list[float], list[float]]:
    """With a point at 0 in front and one far beyond behind."""
    first, last = counts[0], counts[-1]
    far = next((index for index, count in enumerate(counts) if count >= 2 * first), len(counts) - 1)
    near = next((index for index in range(len(counts) - 1, -1, -1) if counts[index] <= last / 2), 0)
    rise = _slope(counts, seconds, 0, far, seconds[0] / max(first, 1.0))
    beyond = _slope(counts, seconds, near, -1, seconds[-1] / max(last, 1.0))
    span = 1000.0 * max(last, 1.0)
    points = [0.0, *counts, last + span], [seconds[0] - rise * first, *seconds, seconds[-1] + beyond * span]
    return points if first > 0 else (points[0][1:], points[1][1:])


def _slope(counts: list[float], seconds: list[float], start: int, stop: int, most: float) -> float:
    span = counts[stop] - counts[start]
    return min((seconds[stop] - seconds[start]) / span, most) if span > 0 else 0.0
