"""Who runs what, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Cell", "Prompts", "Turn", "cells", "chunks", "filled", "turns"]

T = TypeVar("T")

Prompts = Sequence[Sequence[int]]
"""Token ids of each prompt."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload: prompts of one kind, so many at a time.

    Attributes:
        kind: Kind of the prompts.
        batch: Concurrent requests.
    """

    kind: str
    batch: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One measurement: an engine runs a cell once."""

    round_index: int
    cell: Cell
    engine: str


def cells(kinds: Sequence[str], batches: Sequence[int]) -> list[Cell]:
    """Every kind at every number of concurrent requests."""
    return [Cell(kind, batch) for batch in batches for kind in kinds]


def turns(num_rounds: int, workloads: Sequence[Cell], max_batch_of: dict[str, int | None]) -> Iterator[Turn]:
    """Interleaved turns: within a round and cell the engines follow one another, A B C, then the next cell.

    So what changes on the machine over minutes meets all engines alike.

    Args:
        num_rounds: Repetitions of the whole.
        workloads: The cells.
        max_batch_of: ``engine -> most concurrent requests it takes``, in the order of running; ``None`` = any number.
    """
    for round_index in range(num_rounds):
        for cell in workloads:
            for engine, max_batch in max_batch_of.items():
                if max_batch is None or cell.batch <= max_batch:
                    yield Turn(round_index, cell, engine)


def filled(items: Sequence[T], batch: int) -> list[T]:
    """The items, repeated from the start until they fill whole batches."""
    count = -(-len(items) // batch) * batch
    return [items[index % len(items)] for index in range(count)]


def chunks(items: Sequence[T], batch: int) -> list[Sequence[T]]:
    """Consecutive runs of ``batch`` items."""
    return [items[start : start + batch] for start in range(0, len(items), batch)]
