"""Which outputs of a comparison are the same, and where others part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.bench.differences import Difference, TopTwo, locate
from paceline.bench.plan import Cell
from paceline.bench.records import Measurement, RequestRecord
from paceline.bench.rounds import Groups

__all__ = ["Disagreement", "Reference", "disagreements", "reference", "same_counts"]

Outputs = Mapping[tuple[Cell, int], Sequence[int]]
Retokenize = Callable[[Sequence[int]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Reference:
    """Outputs to compare with: an engine's first round.

    Attributes:
        name: The engine, and at how many concurrent requests if that is fixed.
        outputs: ``(cell, prompt index) -> tokens``.
        batch: Compare with the outputs at this number of concurrent requests; ``None`` = with the same cell's.
        retokenize: Tokens to those of their text, for outputs of which nothing but the text is known.
    """

    name: str
    outputs: Outputs
    batch: int | None
    retokenize: Retokenize

    def tokens(self, cell: Cell, prompt_index: int, request: RequestRecord) -> Sequence[int]:
        """What a request of this cell should have emitted."""
        own = cell if self.batch is None else Cell(cell.kind, self.batch)
        tokens = self.outputs[own, prompt_index]
        return tokens if request.text_num_tokens is None else self.retokenize(tokens)


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


def reference(
    measurements: Sequence[Measurement], groups: Groups, engine: str, *, batch: int | None, retokenize: Retokenize
) -> Reference:
    """The outputs of an engine's first round."""
    outputs: dict[tuple[Cell, int], list[int]] = {}
    for measurement in measurements:
        if measurement.engine == engine:
            for prompt_index, request in _requests(measurement, groups):
                outputs.setdefault((measurement.cell, prompt_index), request.token_ids)
    return Reference(engine if batch is None else f"{engine}, batch {batch}", outputs, batch, retokenize)


def _requests(measurement: Measurement, groups: Groups) -> list[tuple[int, RequestRecord]]:
    """Prompts are repeated to fill a batch, so an output's number is its prompt's modulo the number of prompts."""
    num_prompts = len(groups[measurement.cell.kind])
    return [(index % num_prompts, request) for index, request in enumerate(measurement.run.requests)]


def same_counts(
    measurements: Sequence[Measurement], groups: Groups, expected: Reference
) -> dict[tuple[str, Cell], tuple[int, int]]:
    """``(engine, cell) -> (outputs equal to the reference's, outputs compared)`` over all rounds."""
    counts: dict[tuple[str, Cell], tuple[int, int]] = {}
    for measurement in measurements:
        key = (measurement.engine, measurement.cell)
        requests = _requests(measurement, groups)
        same = sum(own.token_ids == expected.tokens(measurement.cell, index, own) for index, own in requests)
        before = counts.get(key, (0, 0))
        counts[key] = (before[0] + same, before[1] + len(requests))
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
        for index, request in _requests(measurement, groups):
            wanted = expected.tokens(cell, index, request)
            found = locate(groups[cell.kind][index], request.token_ids, wanted, best_after)
            if found is not None:
                rounds.setdefault((measurement.engine, cell, index, found), set()).add(measurement.round_index)
    return [
        Disagreement(engine, expected.name, cell, index, len(seen), found)
        for (engine, cell, index, found), seen in rounds.items()
    ]
