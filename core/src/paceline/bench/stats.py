"""Figures over repetitions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Spread", "paired_ratios", "spread", "spread_of_known"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and bounds of a figure over the rounds."""

    median: float
    min: float
    max: float


def spread(values: Iterable[float]) -> Spread:
    """Median, least and greatest of at least one value."""
    known = list(values)
    return Spread(statistics.median(known), min(known), max(known))


def spread_of_known(values: Iterable[float | None]) -> Spread | None:
    """The same over the values that are there; ``None`` if none is."""
    known = [value for value in values if value is not None]
    return spread(known) if known else None


def paired_ratios(values: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """Per round that both have, value / base: what slows a whole round down cancels out."""
    return [value / base[round_index] for round_index, value in values.items() if base.get(round_index)]
