from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.sampling.edits import PROMPT_BIT, AllowedIds, LogitBias, Penalties
from paceline.sampling.pipeline import process

VOCAB = 37
SETTINGS = [
    {},
    {"repetition": 1.3},
    {"repetition": 0.7},
    {"presence": 1.5},
    {"presence": -2.0},
    {"frequency": 0.4},
    {"frequency": -1.1},
    {"repetition": 1.7, "presence": 0.3, "frequency": 0.9},
]


def histories(num_rows: int, num_drafted: int = 4) -> list[tuple[list[int], list[int], list[int]]]:
    """Prompt, output and drafts of each row, with repeats within and across."""
    random = np.random.default_rng(5)
    most = (9, 30, num_drafted)
    return [tuple(random.integers(0, VOCAB, random.integers(0, m + 1)).tolist() for m in most) for _ in range(num_rows)]


def penalties(rows, settings) -> Penalties:
    """Row ``i`` reads counts ``len(rows) - 1 - i``, so that a mix-up of rows shows."""
    width = max(len(drafted) for _, _, drafted in rows)
    counts = torch.stack([build_counts(prompt, output) for prompt, output, _ in reversed(rows)])

    def column(name, off):
        return torch.tensor([given.get(name, off) for given in settings], dtype=torch.float32)

    return Penalties(
        rows=torch.arange(len(rows)),
        counts=counts,
        index=torch.arange(len(rows) - 1, -1, -1),
        drafted=torch.tensor([drafted + [-1] * (width - len(drafted)) for _, _, drafted in rows]),
        repetition=column("repetition", 1.0),
        presence=column("presence", 0.0),
        frequency=column("frequency", 0.0),
    )


def build_counts(prompt, output):
    row = torch.zeros(VOCAB, dtype=torch.int32)
    row[prompt] = PROMPT_BIT
    for token in output:
        row[token] += 1
    return row


def penalised(logits: list[float], prompt, emitted, repetition=1.0, presence=0.0, frequency=0.0) -> list[float]:
    """The rule written out for one row."""
    scores = list(logits)
    for token in set(prompt) | set(emitted):
        scores[token] = scores[token] / repetition if scores[token] > 0 else scores[token] * repetition
    for token in set(emitted):
        scores[token] -= frequency * emitted.count(token) + presence
    return scores


@pytest.fixture
def greedy_rows(build_rows):
    """``(num rows, **edits) -> rows`` at temperature 0."""

    def build(num_rows, banned=(), **edits):
        rows = build_rows([{"temperature": 0.0}] * num_rows, banned)
        for name, value in edits.items():
            setattr(rows, name, value)
        return rows

    return build


@pytest.mark.parametrize("seed", range(3))
def test_penalties_equal_the_loop(seed, greedy_rows):
    rows = histories(len(SETTINGS))
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 5
    scores = process(logits, greedy_rows(len(rows), penalties=penalties(rows, SETTINGS)))
    for row, (prompt, output, drafted) in enumerate(rows):
        expected = penalised(logits[row].tolist(), prompt, output + drafted, **SETTINGS[row])
        torch.testing.assert_close(scores[row], torch.tensor(expected))
    assert not torch.equal(scores[1], logits[1])
    assert torch.equal(scores[0], logits[0])


@pytest.mark.parametrize("strength", [0.5, 1.3, 2.0])
def test_repetition_is_that_of_transformers(strength, greedy_rows, same_bits):
    from transformers import RepetitionPenaltyLogitsProcessor

    rows = histories(6)
    logits = torch.randn(len(rows), VOCAB)
    scores = process(logits, greedy_rows(6, penalties=penalties(rows, [{"repetition": strength}] * 6)))
    theirs = RepetitionPenaltyLogitsProcessor(strength)
    for row, history in enumerate(rows):
        known = torch.tensor([[token for part in history for token in part]])
        expected = theirs(known, logits[row : row + 1]) if known.numel() else logits[row : row + 1]
        assert same_bits(scores[row], expected[0])


def test_bias_is_that_of_transformers(greedy_rows, same_bits):
    from transformers import SequenceBiasLogitsProcessor

    logits = torch.randn(3, VOCAB)
    given = {1: 4.5, 7: -100.0, 36: 0.25}
    ids, values = torch.tensor(list(given)), torch.tensor(list(given.values()))
    bias = LogitBias(torch.tensor([2, 2, 2, 0, 0, 0]), ids.repeat(2), values.repeat(2))
    scores = process(logits, greedy_rows(3, bias=bias))
    theirs = SequenceBiasLogitsProcessor({(token,): value for token, value in given.items()})
    expected = theirs(torch.zeros(3, 1, dtype=torch.int64), logits)
    assert same_bits(scores[[0, 2]], expected[[0, 2]])
    assert same_bits(scores[1], logits[1])


def test_allowed_ids_leave_only_themselves(greedy_rows):
    logits = torch.randn(4, VOCAB)
    masks = torch.zeros(5, VOCAB, dtype=torch.bool)
    masks[3, [0, 9]] = masks[1, [36]] = True
    scores = process(logits, greedy_rows(4, allowed=[AllowedIds(torch.tensor([1, 3]), masks, torch.tensor([3, 1]))]))
    assert scores[1].isfinite().nonzero().flatten().tolist() == [0, 9]
    assert scores[3].isfinite().nonzero().flatten().tolist() == [36]
    assert torch.equal(scores[1, [0, 9]], logits[1, [0, 9]])
    assert torch.equal(scores[[0, 2]], logits[[0, 2]])


def test_the_order_is_masks_bias_penalties_temperature(build_rows):
    """Bias first, so that a penalty sees the sign that it gives; nothing brings a masked id back."""
    logits = torch.tensor([[-1.0, 2.0, 3.0, 1.0]])
    rows = build_rows([{"temperature": 0.5}], banned=[(0, [2])])
    zero = torch.tensor([0])
    rows.allowed = [AllowedIds(zero, torch.tensor([[True, True, True, False]]), zero)]
    rows.bias = LogitBias(torch.tensor([0, 0, 0]), torch.tensor([0, 2, 3]), torch.tensor([5.0, 100.0, 100.0]))
    seen = torch.tensor([[PROMPT_BIT, 0, 1, 1]], dtype=torch.int32)
    one, none = torch.tensor([1.0]), torch.empty(1, 0, dtype=torch.int64)
    rows.penalties = Penalties(torch.tensor([0]), seen, torch.tensor([0]), none, 2 * one, -one, -one)
    scores = process(logits, rows)
    assert scores.tolist() == [[0.0, 0.0, -torch.inf, -torch.inf]]


@pytest.mark.parametrize("masked", [[], [1], [5, 6]])
def test_a_nan_stays_wherever_it_stands(masked, greedy_rows):
    logits = torch.randn(1, VOCAB)
    logits[0, 5] = torch.nan
    mask = torch.ones(1, VOCAB, dtype=torch.bool)
    mask[0, masked] = False
    zero = torch.tensor([0])
    rows = greedy_rows(1, banned=[(0, [5])], allowed=[AllowedIds(zero, mask, zero)])
    assert process(logits, rows)[0].isnan().nonzero().flatten().tolist() == [5]


def test_a_row_does_not_depend_on_the_others(greedy_rows, same_bits, num_threads):
    rows = histories(len(SETTINGS), num_drafted=6)
    logits = torch.randn(len(rows), VOCAB) * 3
    whole = process(logits, greedy_rows(len(rows), penalties=penalties(rows, SETTINGS)))
    for row, given in enumerate(SETTINGS):
        alone = process(logits[row : row + 1], greedy_rows(1, penalties=penalties([rows[row]], [given])))
        assert same_bits(alone[0], whole[row])


def test_a_draft_counts_like_an_emitted_token(greedy_rows, same_bits):
    settings = [SETTINGS[-1]] * 5
    rows = histories(5, num_drafted=6)
    emitted = [(prompt, output + drafted, []) for prompt, output, drafted in rows]
    logits = torch.randn(5, VOCAB)
    as_drafts = process(logits, greedy_rows(5, penalties=penalties(rows, settings)))
    assert same_bits(as_drafts, process(logits, greedy_rows(5, penalties=penalties(emitted, settings))))


def test_logits_and_counts_are_left_alone(greedy_rows):
    rows = histories(2)
    given = penalties(rows, [SETTINGS[-1]] * 2)
    logits = torch.randn(2, VOCAB)
    before = logits.clone(), given.counts.clone()
    process(logits, greedy_rows(2, banned=[(0, [1])], penalties=given))
    assert torch.equal(logits, before[0]) and torch.equal(given.counts, before[1])
