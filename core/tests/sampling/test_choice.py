from __future__ import annotations

import math

import pytest
import torch

from paceline.sampling.choice import Choice, choose, sample
from paceline.sampling.noise import gumbel
from paceline.sampling.pipeline import process

CHOICE = "paceline.sampling.choice"
HOT = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 5},
    {"top_p": 0.6},
    {"temperature": 5.0},
    {"temperature": 0.9, "min_p": 0.05, "top_k": 30, "top_p": 0.95},
]


def _rows(count, offset=0):
    return [dict(HOT[i % len(HOT)], seeds=10 * i + offset, positions=i % 5) for i in range(count)]


def by_definition(scores, rows):
    """argmax(score + noise) over whole rows; the first of equals wins."""
    ids = torch.arange(scores.shape[1])
    noise = gumbel(rows.seeds, rows.positions, ids)
    noisy = torch.where((rows.temperature > 0)[:, None], scores + noise, scores)
    return [row.index(max(row)) for row in noisy.tolist()]


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 16, 33, 1000])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_choice_is_the_argmax_of_score_and_noise(vocab_size, spread, build_rows):
    rows = build_rows(_rows(70))
    scores = process(torch.randn(70, vocab_size) * spread, rows)
    choice = choose(scores, rows)
    assert isinstance(choice, Choice)
    assert choice.tokens.tolist() == by_definition(scores, rows)
    assert not choice.invalid.any()


@pytest.mark.parametrize("vocab_size", [1, 2, 17, 63, 64, 65, 1000, 4097, 49_152])
def test_the_lowest_id_wins_a_greedy_tie(vocab_size, build_rows, num_threads):
    rows = build_rows([{"temperature": 0.0}] * 6)
    for start in {0, 1, vocab_size // 3, vocab_size - 2, vocab_size - 1} & set(range(vocab_size)):
        logits = torch.zeros(6, vocab_size)
        logits[:, start:] = 1.0
        assert choose(logits, rows).tokens.tolist() == [start] * 6
        logits[:, vocab_size - 1] = 2.0
        logits[:, start] = 2.0
        assert choose(logits, rows).tokens.tolist() == [start] * 6


def test_the_lowest_id_wins_a_tie_of_noisy_scores(build_rows, monkeypatch):
    monkeypatch.setattr(f"{CHOICE}.gumbel_of", lambda keys, ids: torch.zeros(ids.shape))
    monkeypatch.setattr(f"{CHOICE}.gumbel_estimate", lambda keys, ids: torch.zeros(len(keys[0]), len(ids)))
    logits = torch.tensor([[0.0, 1.0, 1.0, 0.5, 1.0]] * 2)
    rows = build_rows([{}, {"top_k": 4}])
    assert choose(process(logits, rows), rows).tokens.tolist() == [1, 1]


def test_near_ties_are_decided_by_the_noise_itself_not_its_estimate(build_rows):
    rows = build_rows([{"seeds": seed} for seed in range(3000)])
    noise = gumbel(rows.seeds, rows.positions, torch.arange(2))
    scores = torch.stack([torch.zeros(3000), noise[:, 0] - noise[:, 1]], 1)
    assert choose(scores, rows).tokens.tolist() == by_definition(scores, rows)


def test_top_k_1_is_greedy(build_rows):
    logits = torch.randn(50, 100)
    rows = build_rows([{"top_k": 1, "seeds": seed} for seed in range(50)])
    assert torch.equal(sample(logits, rows).tokens, logits.argmax(-1))


def test_rows_without_a_finite_best_score_are_invalid(build_rows):
    for given in HOT:
        logits = torch.randn(6, 20)
        logits[1, 19], logits[2, 0], logits[3], logits[4, 3] = torch.nan, torch.nan, -torch.inf, torch.inf
        choice = sample(logits, build_rows([given] * 6))
        assert choice.invalid.tolist() == [False, True, True, True, True, False]
        assert choice.tokens[choice.invalid].tolist() == [0] * 4
        assert choice.tokens.max() < 20


def test_a_row_with_every_id_banned_is_invalid(build_rows):
    rows = build_rows([{}, {"temperature": 0.0}, {}], banned=[(0, range(4)), (1, range(4))])
    assert sample(torch.zeros(3, 4), rows).invalid.tolist() == [True, True, False]


@pytest.mark.parametrize("vocab_size", [16, 33, 1001, 49_152])
def test_a_choice_does_not_depend_on_the_batch(vocab_size, build_rows, num_threads):
    count = 14 if vocab_size < 40_000 else 5
    given = _rows(count)
    logits = torch.randn(count, vocab_size) * 3
    whole = sample(logits, build_rows(given)).tokens
    for row in range(count):
        assert sample(logits[row : row + 1], build_rows([given[row]])).tokens[0] == whole[row]
    order = torch.randperm(count).tolist()[: count - 2]
    assert torch.equal(sample(logits[order], build_rows([given[i] for i in order])).tokens, whole[order])


def test_seed_and_position_drive_the_choice_and_nothing_else(build_rows):
    logits = torch.zeros(1, 1000).expand(6, 1000)
    first, greedy = {"seeds": 42}, {"temperature": 0.0}
    rows = build_rows([first, {"seeds": 1}, {"seeds": 1, "positions": 4}, {"seeds": 2}, greedy, first])
    tokens = sample(logits, rows).tokens.tolist()
    assert tokens[0] == tokens[5] == sample(logits[:1], build_rows([first])).tokens[0]
    assert tokens[4] == 0
    assert len(set(tokens)) == 5


def test_unequal_seeds_give_unequal_samples(build_rows):
    rows = build_rows([{"seeds": seed} for seed in range(20)])
    assert len(set(sample(torch.zeros(20, 1000), rows).tokens.tolist())) >= 15


@pytest.mark.parametrize("given", [{}, {"temperature": 0.6}, {"top_k": 6}, {"top_p": 0.8, "temperature": 1.5}])
def test_tokens_follow_the_distribution(given, build_rows):
    trials, vocab_size = 100_000, 16
    logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(5)) * 1.5
    one = build_rows([given])
    rows = build_rows([given] * trials)
    rows.seeds = torch.arange(trials)
    expected = process(logits, one)[0].double().softmax(-1) * trials
    counts = torch.bincount(sample(logits.expand(trials, -1), rows).tokens, minlength=vocab_size)
    assert counts[expected == 0].sum() == 0
    df = int((expected > 0).sum()) - 1
    distance = ((counts - expected) ** 2 / expected)[expected > 0].sum()
    assert distance < df * (1 - 2 / (9 * df) + 6 * math.sqrt(2 / (9 * df))) ** 3


def test_a_greedy_batch_costs_one_argmax(build_rows, monkeypatch):
    monkeypatch.setattr(f"{CHOICE}.row_keys", lambda *_: pytest.fail("noise for a greedy batch"))
    logits = torch.randn(4, 50)
    assert torch.equal(sample(logits, build_rows([{"temperature": 0.0}] * 4)).tokens, logits.argmax(-1))


def test_no_rows(build_rows):
    assert sample(torch.empty(0, 5), build_rows([])).tokens.shape == (0,)
