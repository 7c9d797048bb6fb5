"""Running the turns."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.bench.engines import BenchEngine
from paceline.bench.plan import Prompts, Turn, cells, chunks, filled, turns
from paceline.bench.records import Measurement, Run, merged

__all__ = ["WARM_UP_TOKENS", "Groups", "Schedule", "measure", "num_turns", "warm_up"]

WARM_UP_TOKENS = 8

Groups = Mapping[str, Prompts]
"""``kind -> token ids of its prompts``."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often and how much.

    Attributes:
        batches: Numbers of concurrent requests.
        max_tokens: Most tokens to emit per request.
        num_rounds: Measured repetitions.
        num_warmup: Repetitions before them, with few tokens each, that are not measured.
    """

    batches: Sequence[int]
    max_tokens: int
    num_rounds: int
    num_warmup: int


def num_turns(engines: Sequence[BenchEngine], groups: Groups, schedule: Schedule) -> int:
    """How many turns warm-up and measurement take."""
    return len(_turns(engines, groups, schedule, schedule.num_warmup + schedule.num_rounds))


def warm_up(
    engines: Sequence[BenchEngine], groups: Groups, schedule: Schedule, on_turn: Callable[[Turn], None]
) -> None:
    """Run everything with few tokens, so that first-use costs fall outside the measured rounds."""
    num_tokens = min(WARM_UP_TOKENS, schedule.max_tokens)
    for turn, engine in _turns(engines, groups, schedule, schedule.num_warmup):
        on_turn(turn)
        run_cell(engine, groups[turn.cell.kind], turn.cell.batch, num_tokens)


def measure(
    engines: Sequence[BenchEngine], groups: Groups, schedule: Schedule, on_turn: Callable[[Turn], None]
) -> list[Measurement]:
    """Run the measured rounds.

    Args:
        engines: In the order of running.
        groups: The prompts.
        schedule: How often and how much.
        on_turn: Called before each turn.
    """
    measurements = []
    for turn, engine in _turns(engines, groups, schedule, schedule.num_rounds):
        on_turn(turn)
        run = run_cell(engine, groups[turn.cell.kind], turn.cell.batch, schedule.max_tokens)
        measurements.append(Measurement(turn.round_index, turn.cell, turn.engine, run))
    return measurements


def _turns(
    engines: Sequence[BenchEngine], groups: Groups, schedule: Schedule, num_rounds: int
) -> list[tuple[Turn, BenchEngine]]:
    by_name = {engine.name: engine for engine in engines}
    max_batch_of = {engine.name: engine.max_batch for engine in engines}
    planned = turns(num_rounds, cells(list(groups), schedule.batches), max_batch_of)
    return [(turn, by_name[turn.engine]) for turn in planned]


def run_cell(engine: BenchEngine, prompts: Prompts, batch: int, max_tokens: int) -> Run:
    """The prompts, repeated until they fill whole batches, batch after batch."""
    gc.collect()
    return merged([engine.generate(chunk, max_tokens) for chunk in chunks(filled(prompts, batch), batch)])
