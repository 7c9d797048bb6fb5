"""Which outputs of a comparison are the same, and where others part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.bench.differences import Difference, TopTwo, locate
from paceline.bench.plan import Cell
from paceline.bench.records import Measurement
from paceline.bench.rounds import Groups

__all__ = ["Disagreement", "Reference", "disagreements", "reference", "same_counts"]

Outputs = Mapping[tuple[Cell, int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Reference:
    """Outputs to compare with: an engine's first round.

    Attributes:
        name: The engine, and at how many concurrent requests if that is fixed.
        outputs: ``(cell, prompt index) -> tokens``.
        batch: Compare with the outputs at this number of concurrent requests; ``None`` = with the same cell's.
    """

    name: str
    outputs: Outputs
    batch: int | None

    def tokens(self, cell: Cell, prompt_index: int) -> Sequence[int]:
        """What an output of this cell should be."""
        own = cell if self.batch is None else Cell(cell.kind, self.batch)
        return self.outputs[own, prompt_index]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A first difference that at least one round showed.

    Attributes:
        engine: Whose output.
        reference: What it was compared with.
        cell: Where.
        prompt_index: Number of the prompt within its kind.
        num_rounds: In how many rounds.
        difference: Position, tokens and gap.
    """

    engine: str
    reference: str
    cell: Cell
    prompt_index: int
    num_rounds: int
    difference: Difference


def reference(measurements: Sequence[Measurement], groups: Groups, engine: str, *, batch: int | None) -> Reference:
    """The outputs of an engine's first round."""
    outputs: dict[tuple[Cell, int], list[int]] = {}
    for measurement in measurements:
        if measurement.engine == engine:
            for prompt_index, tokens in _outputs(measurement, groups):
                outputs.setdefault((measurement.cell, prompt_index), tokens)
    return Reference(engine if batch is None else f"{engine}, batch {batch}", outputs, batch)


def _outputs(measurement: Measurement, groups: Groups) -> list[tuple[int, list[int]]]:
    """Prompts are repeated to fill a batch, so an output's number is its prompt's modulo the number of prompts."""
    num_prompts = len(groups[measurement.cell.kind])
    return [(index % num_prompts, request.token_ids) for index, request in enumerate(measurement.run.requests)]


def same_counts(
    measurements: Sequence[Measurement], groups: Groups, expected: Reference
) -> dict[tuple[str, Cell], tuple[int, int]]:
    """``(engine, cell) -> (outputs equal to the reference's, outputs compared)`` over all rounds."""
    counts: dict[tuple[str, Cell], tuple[int, int]] = {}
    for measurement in measurements:
        key = (measurement.engine, measurement.cell)
        outputs = _outputs(measurement, groups)
        same = sum(tokens == expected.tokens(measurement.cell, index) for index, tokens in outputs)
        before = counts.get(key, (0, 0))
        counts[key] = (before[0] + same, before[1] + len(outputs))
    return counts


def disagreements(
    measurements: Sequence[Measurement],
    groups: Groups,
    expected: Reference,
    best_after: Callable[[Sequence[int]], TopTwo],
) -> list[Disagreement]:
    """Every distinct first difference from the reference, in the order in which they appeared.

    Args:
        measurements: All measurements.
        groups: The prompts.
        expected: What they are compared with.
        best_after: The best two tokens after prompt and emitted tokens.
    """
    rounds: dict[tuple[str, Cell, int, Difference], set[int]] = {}
    for measurement in measurements:
        cell = measurement.cell
        for index, tokens in _outputs(measurement, groups):
            found = locate(groups[cell.kind][index], tokens, expected.tokens(cell, index), best_after)
            if found is not None:
                rounds.setdefault((measurement.engine, cell, index, found), set()).add(measurement.round_index)
    return [
        Disagreement(engine, expected.name, cell, index, len(seen), found)
        for (engine, cell, index, found), seen in rounds.items()
    ]
