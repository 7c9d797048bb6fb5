"""First differences, and counting what is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from paceline.bench.differences import Difference, TopTwo, first_difference, locate, top_two
from paceline.bench.outputs import disagreements, reference, same_counts
from paceline.bench.plan import Cell
from paceline.bench.records import Measurement, RequestRecord

GROUPS = {"chat": [[70], [80]]}


def unchanged(token_ids: Sequence[int]) -> Sequence[int]:
    return token_ids


BEST = TopTwo((1, 2), 0.25)


@pytest.mark.parametrize(
    ("tokens", "expected", "position"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 3], 1), ([1, 3], [1], 1), ([4], [5], 0)],
)
def test_first_difference(tokens: list[int], expected: list[int], position: int | None) -> None:
    assert first_difference(tokens, expected) == position


def test_the_best_two_are_asked_for_after_the_common_prefix() -> None:
    asked: list[Sequence[int]] = []

    def best_after(token_ids: Sequence[int]) -> TopTwo:
        asked.append(token_ids)
        return BEST

    assert locate([70, 71], [5, 1, 9], [5, 2], best_after) == Difference(1, 1, 2, BEST)
    assert asked == [[70, 71, 5]]
    assert locate([70], [5], [5, 2], best_after) == Difference(1, None, 2, BEST)
    assert locate([70], [5], [5], best_after) is None


def test_top_two() -> None:
    assert top_two(torch.tensor([0.5, 3.0, -1.0, 2.5])) == TopTwo((1, 3), 0.5)


@pytest.fixture
def measurements(record: Callable[..., Measurement]) -> list[Measurement]:
    """``B`` differs from ``A`` for the second prompt, in both rounds at batch 1 and nowhere at batch 4."""
    single = [
        record(engine, round_index, 1.0, [[5, 6], other])
        for round_index in (0, 1)
        for engine, other in (("A", [7, 8]), ("B", [7, 9]))
    ]
    return [*single, record("B", 0, 1.0, [[5, 6], [7, 8], [5, 6], [7, 8]], batch=4)]


def test_same_outputs_are_counted_over_rounds_and_repeated_prompts(measurements: list[Measurement]) -> None:
    expected = reference(measurements, GROUPS, "A", batch=1, retokenize=unchanged)
    assert expected.name == "A, batch 1"
    one, four = Cell("chat", 1), Cell("chat", 4)
    assert same_counts(measurements, GROUPS, expected) == {("A", one): (4, 4), ("B", one): (2, 4), ("B", four): (4, 4)}


def test_a_reference_may_be_of_the_same_cell(record: Callable[..., Measurement]) -> None:
    outputs = {1: [[5], [6]], 4: [[5], [7]]}
    measurements = [record(e, 0, 1.0, outputs[b], batch=b) for b in (1, 4) for e in ("A", "B")]
    expected = reference(measurements, GROUPS, "A", batch=None, retokenize=unchanged)
    assert same_counts(measurements, GROUPS, expected)["B", Cell("chat", 4)] == (2, 2)


def test_the_first_round_is_the_reference(record: Callable[..., Measurement]) -> None:
    measurements = [record("A", index, 1.0, [[5], [6 + index]]) for index in (0, 1)]
    expected = reference(measurements, GROUPS, "A", batch=None, retokenize=unchanged)
    assert same_counts(measurements, GROUPS, expected) == {("A", Cell("chat", 1)): (3, 4)}
    assert expected.tokens(Cell("chat", 1), 1, RequestRecord([], 0.1, None)) == [6]


def test_outputs_known_by_their_text_are_compared_with_the_tokens_of_the_reference_s_text(
    record: Callable[..., Measurement],
) -> None:
    """``B`` tells text only, and 9 is a token without text; ``C`` tells the tokens themselves."""
    measurements = [record("A", 0, 1.0, [[5, 9], [6, 7]]), record("B", 0, 1.0, [[5], [6, 8]])]
    for request in measurements[1].run.requests:
        request.text_num_tokens = 2
    measurements.append(record("C", 0, 1.0, [[5], [6, 7]]))

    def retokenize(token_ids: Sequence[int]) -> list[int]:
        return [token for token in token_ids if token != 9]

    expected = reference(measurements, GROUPS, "A", batch=1, retokenize=retokenize)
    one = Cell("chat", 1)
    assert same_counts(measurements, GROUPS, expected) == {("A", one): (2, 2), ("B", one): (1, 2), ("C", one): (1, 2)}
    found = disagreements(measurements, GROUPS, expected, lambda token_ids: BEST)
    assert [(item.engine, item.prompt_index, item.difference.position) for item in found] == [("B", 1, 1), ("C", 0, 1)]


def test_a_difference_is_told_once_with_its_rounds(measurements: list[Measurement]) -> None:
    expected = reference(measurements, GROUPS, "A", batch=1, retokenize=unchanged)
    (found,) = disagreements(measurements, GROUPS, expected, lambda token_ids: TopTwo((8, 9), float(len(token_ids))))
    assert (found.engine, found.reference, found.cell, found.prompt_index) == ("B", "A, batch 1", Cell("chat", 1), 1)
    assert found.num_rounds == 2
    assert found.difference == Difference(1, 9, 8, TopTwo((8, 9), 2.0))
