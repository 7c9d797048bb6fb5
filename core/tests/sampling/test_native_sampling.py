"""The native body of the choice against the one in PyTorch: the same tokens, also at every edge."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from paceline.native.library import native_library
from paceline.sampling.choice import choose, sample
from paceline.sampling.exact_math import exp_mass
from paceline.sampling.noise import gumbel
from paceline.sampling.pipeline import process

pytestmark = pytest.mark.skipif(native_library() is None, reason="the native kernels cannot be built here")

FILTERS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3, "top_p": 0.9},
    {"temperature": 1.7, "top_p": 0.99},
    {"top_k": 1},
    {"temperature": 1.3, "top_k": 40},
    {"top_k": 3000},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"temperature": 0.9, "min_p": 0.02, "top_k": 30, "top_p": 0.95},
    {"temperature": 1e-4},
    {"temperature": 40.0, "top_k": 1 << 40, "top_p": 0.5, "min_p": 1e-6},
    {"top_p": 1e-9},
]


def _same(logits: torch.Tensor, rows) -> None:
    expected, choice = choose(process(logits, rows), rows), sample(logits, rows)
    assert choice.tokens.tolist() == expected.tokens.tolist()
    assert choice.invalid.tolist() == expected.invalid.tolist()


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 8, 17, 64, 301, 5003, 49_152])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 30.0])
def test_tokens_are_those_of_the_other_body(vocab_size, spread, build_rows, num_threads):
    for trial in range(2 if vocab_size > 10_000 else 12):
        rows = build_rows([dict(given, seeds=trial * 97 + i, positions=i) for i, given in enumerate(FILTERS)])
        logits = torch.randn(len(FILTERS), vocab_size) * spread + 5
        _same(logits, rows)
        _same((logits * 2).round() / 2, rows)  # ties, at the thresholds too


@pytest.mark.parametrize("given", FILTERS)
def test_scores_that_cannot_be_trusted(given, build_rows):
    logits = torch.randn(9, 37) * 3
    logits[0, 0] = logits[1, 36] = logits[2, 9] = torch.nan
    logits[3, 5] = logits[4, 36] = torch.inf
    logits[5] = -torch.inf
    logits[6, 1:] = -torch.inf
    logits[7, ::2] = -torch.inf
    _same(logits, build_rows([given] * 9))


def test_the_nucleus_ends_where_the_mass_first_reaches_its_share(build_rows):
    scores = (torch.randn(40) * 2).sort(descending=True).values
    scores -= scores[0].clone()
    cumulative = exp_mass(scores).cumsum(0).double()
    exact = (cumulative / cumulative[-1]).float()
    ends = exact[:-1].numpy()
    shares = np.stack([np.nextafter(ends, 0), ends, np.nextafter(ends, 1)], axis=1).ravel().tolist()
    rows = build_rows([{"top_p": share, "seeds": i} for i, share in enumerate(shares)])
    assert len({int((row > -torch.inf).sum()) for row in process(scores.expand(len(shares), -1), rows)}) > 20
    for seed in range(20):
        rows.seeds = torch.arange(len(shares)) + 1000 * seed
        _same(scores.expand(len(shares), -1).contiguous(), rows)


def _with_as_much_again(best: torch.Tensor) -> torch.Tensor:
    """The scores and lower ones that together weigh exactly what they do."""
    scores = torch.cat([best, best.min() - 0.01 - torch.rand(len(best))])
    missing = int(2 * exp_mass(best).sum() - exp_mass(scores).sum())
    while missing:
        score = torch.tensor(min((missing + 0.5) / (1 << 40), 0.05)).log()
        while int(exp_mass(score)) > missing:
            score = score.nextafter(torch.tensor(-torch.inf))
        scores = torch.cat([scores, score[None]])
        missing -= int(exp_mass(score))
    return scores.sort(descending=True).values


def test_masses_are_right_to_the_last_unit(build_rows):
    """Half of the mass ends exactly at one token: one unit more or less, and another token wins."""
    seeds = torch.arange(3000)
    for _ in range(15):
        best = torch.cat([torch.zeros(1), -2.5 * torch.rand(40)]).sort(descending=True).values
        scores, last = _with_as_much_again(best), len(best) - 1
        noise = gumbel(seeds, torch.full_like(seeds, 3), torch.arange(last + 2))
        winners = (scores[: last + 2] + noise).argmax(-1)
        kept, too_many = (int(seeds[winners == token][0]) for token in (last, last + 1))
        rows = build_rows([{"top_p": 0.5, "seeds": seed} for seed in (kept, too_many, too_many)])
        logits = torch.nn.functional.pad(scores, (0, 1), value=-torch.inf).repeat(3, 1)
        logits[2, -1] = -27.0  # weighs 2 units
        tokens = sample(logits, rows).tokens.tolist()
        assert tokens[0] == last and tokens[1] <= last and tokens[2] == last + 1
        _same(logits, rows)


@pytest.mark.parametrize(("vocab_size", "other"), [(2, 1), (64, 40)])
def test_near_ties_are_decided_by_the_last_bit_of_the_noise(vocab_size, other, build_rows):
    """Two ids are near; the others have no chance, but make the scores fill vectors."""
    rows = build_rows([{"seeds": seed} for seed in range(4000)])
    noise = gumbel(rows.seeds, rows.positions, torch.tensor([0, other]))
    gap = noise[:, 0] - noise[:, 1]
    for nudged in (gap, gap.nextafter(gap + 1), gap.nextafter(gap - 1)):
        logits = torch.full((4000, vocab_size), -90.0)
        logits[:, 0], logits[:, other] = 0.0, nudged
        _same(logits, rows)


def test_rows_may_lie_apart(build_rows):
    wide = torch.randn(5, 60)
    rows = build_rows([{"seeds": i} for i in range(5)])
    assert_close(sample(wide[:, :40], rows).tokens, sample(wide[:, :40].contiguous(), rows).tokens)
    _same(wide[:1, :40].expand(5, -1), rows)
