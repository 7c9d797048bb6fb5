from __future__ import annotations

import math

import pytest
import torch

from paceline.sampling.pipeline import NUCLEUS_WIDTHS, process

FILTERS = [
    {},
    {"temperature": 0.0, "top_k": 3, "top_p": 0.2, "min_p": 0.9},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 1},
    {"top_k": 10_000_000},
    {"temperature": 0.8, "top_k": 5},
    {"temperature": 0.6, "top_p": 0.5},
    {"top_p": 0.999},
    {"temperature": 2.0, "min_p": 0.1},
    {"temperature": 1.1, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"top_p": 1e-12},
    {"min_p": 1.0},
]


def oracle(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The surviving ids of one row, in float64 and plain loops."""
    z = [(value - max(logits)) / temperature for value in logits]
    alive = {i for i, value in enumerate(z) if min_p == 0 or value >= math.log(min_p)}
    if top_k > 0:
        floor = sorted((z[i] for i in alive), reverse=True)[: min(top_k, len(alive))][-1]
        alive = {i for i in alive if z[i] >= floor}
    if top_p < 1:
        total, mass = sum(math.exp(z[i]) for i in alive), 0.0
        for i in sorted(alive, key=lambda i: -z[i]):
            mass += math.exp(z[i])
            if mass >= top_p * total:
                alive = {j for j in alive if z[j] >= z[i]}
                break
    return alive


@pytest.mark.parametrize("vocab_size", [1, 2, 5, 33, 300])
@pytest.mark.parametrize("seed", range(4))
def test_survivors_equal_the_oracle(vocab_size, seed, build_rows):
    logits = torch.randn(len(FILTERS), vocab_size, generator=torch.Generator().manual_seed(seed)) * 3
    scores = process(logits, build_rows(FILTERS))
    for row, given in enumerate(FILTERS):
        temperature = given.get("temperature", 1.0)
        if temperature == 0:
            assert torch.equal(scores[row], logits[row])
            continue
        alive = oracle(
            logits[row].tolist(), temperature, given.get("top_k", 0), given.get("top_p", 1.0), given.get("min_p", 0.0)
        )
        assert set(scores[row].isfinite().nonzero().flatten().tolist()) == alive
        kept = sorted(alive)
        assert torch.allclose(scores[row, kept], (logits[row, kept] - logits[row].max()) / temperature)


def test_scores_are_0_at_the_best_and_logits_are_left_alone(build_rows):
    logits = torch.randn(3, 40)
    before = logits.clone()
    scores = process(logits, build_rows([{"temperature": 0.5, "top_p": 0.3}] * 3))
    assert torch.equal(logits, before)
    assert scores.amax(-1).tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"top_k": 2}, [0, 1, 3]),
        ({"top_k": 1}, [0]),
        ({"top_p": 0.75}, [0, 1, 3]),
        ({"top_p": 0.3}, [0]),
        ({"min_p": 0.5}, [0, 1, 3]),
    ],
)
def test_ties_at_a_threshold_are_kept(given, kept, build_rows):
    half = torch.tensor(0.5).log().item()
    logits = torch.tensor([[0.0, half, -9.0, half, -9.0]])
    assert process(logits, build_rows([given]))[0].isfinite().nonzero().flatten().tolist() == kept


def test_top_p_takes_what_min_p_and_top_k_left(build_rows):
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert process(logits, build_rows([{"top_p": 0.79}]))[0].isfinite().sum() == 2
    assert process(logits, build_rows([{"top_p": 0.81}]))[0].isfinite().sum() == 3
    assert process(logits, build_rows([{"top_k": 2, "top_p": 0.62}]))[0].isfinite().sum() == 1
    assert process(logits, build_rows([{"min_p": 0.5, "top_p": 0.62}]))[0].isfinite().sum() == 1


@pytest.mark.parametrize("share", [0.001, 0.2, 0.999])
def test_a_nucleus_wider_than_each_first_look(share, build_rows):
    vocab_size = 2 * NUCLEUS_WIDTHS[-1]
    logits = torch.linspace(0, -1, vocab_size, dtype=torch.float64)
    scores = process(logits.float()[None], build_rows([{"top_p": share}]))
    mass = logits.exp().cumsum(0)
    expected = int((mass < share * mass[-1]).sum()) + 1
    assert abs(int(scores.isfinite().sum()) - expected) <= 1


def test_bans_come_first(build_rows):
    logits = torch.tensor([[5.0, 3.0, 1.0]] * 3)
    greedy = {"temperature": 0.0}
    rows = build_rows([{"top_k": 1}, greedy, greedy], banned=[(0, [0]), (1, (0, 1)), (2, [])])
    scores = process(logits, rows)
    assert scores[0].tolist() == [-torch.inf, 0.0, -torch.inf]
    assert scores[1].tolist() == [-torch.inf, -torch.inf, 1.0]
    assert scores[2].tolist() == [5.0, 3.0, 1.0]
    assert logits[0, 0] == 5.0


def test_a_greedy_batch_is_not_copied(build_rows):
    logits = torch.randn(2, 8)
    assert process(logits, build_rows([{"temperature": 0.0, "top_p": 0.1}] * 2)) is logits


def test_nan_survives_every_filter(build_rows):
    logits = torch.randn(len(FILTERS), 50)
    logits[:, 7] = torch.nan
    assert process(logits, build_rows(FILTERS)).isnan().any(-1).all()


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 33, 64, 129, 1000, 49_152])
def test_a_row_does_not_depend_on_the_others(vocab_size, build_rows, num_threads, same_bits):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(len(FILTERS), vocab_size, generator=generator) * 4
    banned = [(5, [0]), (9, [0])] if vocab_size > 1 else []
    whole = process(logits, build_rows(FILTERS, banned))
    for row, given in enumerate(FILTERS):
        own = [(0, ids) for banned_row, ids in banned if banned_row == row]
        assert same_bits(process(logits[row : row + 1], build_rows([given], own))[0], whole[row])
    for picked in ([9, 3, 6], [6, 6, 6, 6, 7], [2, 0, 11, 1, 8, 10, 4]):
        some = process(logits[picked], build_rows([FILTERS[row] for row in picked]))
        for row, index in enumerate(picked):
            if index not in (5, 9):
                assert same_bits(some[row], whole[index])


def test_strange_rows_do_not_touch_their_neighbours(build_rows, same_bits):
    given = {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_p": 0.001}
    logits = torch.randn(4, 77)
    alone = process(logits[:1], build_rows([given]))
    logits[1], logits[2], logits[3, 5] = torch.nan, -torch.inf, torch.inf
    assert same_bits(process(logits, build_rows([given] * 4))[0], alone[0])


def test_no_rows(build_rows):
    assert process(torch.empty(0, 5), build_rows([])).shape == (0, 5)
