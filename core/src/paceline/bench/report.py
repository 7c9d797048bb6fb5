"""The rows of the report, from measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.bench.plan import Cell
from paceline.bench.records import Measurement, Run, merged
from paceline.bench.stats import Spread, paired_ratios, spread, spread_of_known

__all__ = ["ALL_KINDS", "RatioBases", "Row", "measurement_fields", "report_rows", "with_totals"]

ALL_KINDS = "all kinds"


@dataclass(frozen=True, slots=True)
class RatioBases:
    """Whose tokens per second a row is divided by.

    Attributes:
        transformers: The engine that is transformers' ``generate``.
        no_speculation: The engine that is Paceline without speculation.
        batch: The least number of concurrent requests measured.
    """

    transformers: str
    no_speculation: str
    batch: int


@dataclass(slots=True)
class Row:
    """One engine on one cell, over the rounds.

    Attributes:
        engine: The engine.
        kind: Kind of the prompts; ``"all kinds"`` = all of them together.
        batch: Concurrent requests.
        tokens_per_s: Emitted tokens of all requests per second.
        ratio_to_transformers: Of tokens per second, to transformers' ``generate`` on the same cell, round by round.
        ratio_to_transformers_smallest_batch: The same, to its figure at the least number of concurrent requests.
        ratio_to_no_speculation: The same, to Paceline without speculation on the same cell.
        ttft_s: Of the rounds' medians over requests.
        tpot_s: Of the rounds' medians over requests.
        acceptance_length: Tokens per verify step with drafts, bonus included; ``None`` if there is none to tell of.
        tokens_per_pass: Emitted tokens of all requests per pass of the target; ``None`` if the passes are not told.
        num_output_tokens: Emitted tokens per request.
        agreement: ``reference -> (outputs equal to it, outputs compared)`` over all rounds.
    """

    engine: str
    kind: str
    batch: int
    tokens_per_s: Spread
    ratio_to_transformers: Spread | None
    ratio_to_transformers_smallest_batch: Spread | None
    ratio_to_no_speculation: Spread | None
    ttft_s: Spread
    tpot_s: Spread | None
    acceptance_length: float | None
    tokens_per_pass: float | None
    num_output_tokens: Spread
    agreement: dict[str, tuple[int, int]] = field(default_factory=dict)


def with_totals(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The measurements and, where there are several kinds, those of all kinds together."""
    if len({measurement.cell.kind for measurement in measurements}) < 2:
        return list(measurements)
    parts: dict[tuple[int, int, str], list[Run]] = {}
    for measurement in measurements:
        key = (measurement.round_index, measurement.cell.batch, measurement.engine)
        parts.setdefault(key, []).append(measurement.run)
    totals = [
        Measurement(round_index, Cell(ALL_KINDS, batch), engine, merged(runs))
        for (round_index, batch, engine), runs in parts.items()
    ]
    return [*measurements, *totals]


def report_rows(
    measurements: Sequence[Measurement],
    bases: RatioBases,
    agreement: Mapping[str, Mapping[tuple[str, Cell], tuple[int, int]]],
) -> list[Row]:
    """One row per engine and cell, cell by cell in the order of the measurements.

    Args:
        measurements: With totals, if those are to have rows.
        bases: Whose figures the ratios are to.
        agreement: ``reference -> (engine, cell) -> (outputs equal to it, outputs compared)``.
    """
    runs: dict[tuple[str, Cell], dict[int, Run]] = {}
    for measurement in measurements:
        runs.setdefault((measurement.engine, measurement.cell), {})[measurement.round_index] = measurement.run
    rates = {key: {index: run.tokens_per_s for index, run in rounds.items()} for key, rounds in runs.items()}
    rows = []
    for (engine, cell), rounds in runs.items():
        row = _row(engine, cell, list(rounds.values()))
        own = rates[engine, cell]
        row.ratio_to_transformers = _ratio(own, rates.get((bases.transformers, cell)))
        smallest = (bases.transformers, Cell(cell.kind, bases.batch))
        row.ratio_to_transformers_smallest_batch = _ratio(own, rates.get(smallest))
        row.ratio_to_no_speculation = _ratio(own, rates.get((bases.no_speculation, cell)))
        row.agreement = {name: _same_of(counts, engine, cell) for name, counts in agreement.items()}
        rows.append(row)
    return rows


def _ratio(own: Mapping[int, float], base: Mapping[int, float] | None) -> Spread | None:
    return None if base is None else spread_of_known(paired_ratios(own, base))


def _same_of(counts: Mapping[tuple[str, Cell], tuple[int, int]], engine: str, cell: Cell) -> tuple[int, int]:
    kinds = {own.kind for _, own in counts} if cell.kind == ALL_KINDS else {cell.kind}
    pairs = [counts[engine, Cell(kind, cell.batch)] for kind in sorted(kinds)]
    return sum(same for same, _ in pairs), sum(compared for _, compared in pairs)


def _row(engine: str, cell: Cell, rounds: Sequence[Run]) -> Row:
    total = merged(rounds)
    return Row(
        engine=engine,
        kind=cell.kind,
        batch=cell.batch,
        tokens_per_s=spread(run.tokens_per_s for run in rounds),
        ratio_to_transformers=None,
        ratio_to_transformers_smallest_batch=None,
        ratio_to_no_speculation=None,
        ttft_s=spread(run.ttft_s for run in rounds),
        tpot_s=spread_of_known(run.tpot_s for run in rounds),
        acceptance_length=1 + total.num_accepted_tokens / total.num_drafts if total.num_drafts else None,
        tokens_per_pass=total.num_tokens / total.num_passes if total.num_passes else None,
        num_output_tokens=spread(request.num_tokens for request in total.requests),
    )


def measurement_fields(measurement: Measurement) -> dict[str, Any]:
    """A measurement for JSON, without its tokens."""
    run = measurement.run
    fields = {"round": measurement.round_index, "engine": measurement.engine, **asdict(measurement.cell)}
    fields |= {"seconds": run.seconds, "num_requests": len(run.requests), "num_tokens": run.num_tokens}
    names = ("num_passes", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "draft_time_s", "verify_time_s")
    return fields | {name: getattr(run, name) for name in names} | {"ttft_s": run.ttft_s, "tpot_s": run.tpot_s}
