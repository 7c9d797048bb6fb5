from __future__ import annotations

import itertools
import math

import pytest
import torch

from paceline.verify.chain import accept_chain


@pytest.mark.parametrize(
    ("drafts", "chosen", "accepted"),
    [
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 2, 9, 4], 2),
        ([1, 2, 3], [9, 2, 3, 4], 0),
        ([1, 2, 3], [1, 9, 3, 4], 1),
        ([1, -1, -1], [1, 2, 3, 4], 1),
        ([-1, -1, -1], [1, 2, 3, 4], 0),
        ([1, -1, -1], [1, -1, -1, -1], 1),
        ([0, 0, 0], [0, 0, 0, 0], 3),
    ],
)
def test_counts_up_to_the_first_difference(drafts, chosen, accepted):
    assert accept_chain(torch.tensor([drafts]), torch.tensor([chosen])).tolist() == [accepted]


def test_no_drafts_and_no_rows():
    assert accept_chain(torch.empty(3, 0, dtype=torch.int64), torch.ones(3, 1, dtype=torch.int64)).tolist() == [0] * 3
    assert accept_chain(torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 3, dtype=torch.int64)).shape == (0,)


def test_batches_equal_a_loop():
    generator = torch.Generator().manual_seed(1)
    drafts = torch.randint(-1, 2, (500, 5), generator=generator)
    chosen = torch.randint(0, 2, (500, 6), generator=generator)
    expected = [
        next((i for i, (d, c) in enumerate(zip(row, want, strict=False)) if d != c), 5)
        for row, want in zip(drafts.tolist(), chosen.tolist(), strict=True)
    ]
    result = accept_chain(drafts, chosen)
    assert result.dtype == torch.int64 and result.tolist() == expected


def _emitted(law, draft, accept):
    """The exact law of what one step emits for a draft: every outcome of the target's choices, weighted."""
    outcomes = torch.tensor(list(itertools.product(range(law.vocab), repeat=len(draft) + 1)))
    accepted = accept(torch.tensor([draft]).expand(len(outcomes), -1), outcomes)
    emitted: dict[tuple[int, ...], float] = {}
    for chosen, count in zip(outcomes.tolist(), accepted.tolist(), strict=True):
        weight = math.prod(law.after[tuple(draft[:i])][chosen[i]] for i in range(len(chosen)))
        run = (*draft[:count], chosen[count])
        emitted[run] = emitted.get(run, 0.0) + weight
    return emitted


@pytest.mark.parametrize(("vocab", "num_drafts"), [(3, 2), (3, 3), (4, 2), (5, 2)])
def test_exact_enumeration(vocab, num_drafts, make_law):
    law = make_law(vocab, num_drafts + 1, seed=vocab + num_drafts)
    for draft in itertools.product(range(vocab), repeat=num_drafts):
        assert law.distance(_emitted(law, list(draft), accept_chain)) < 1e-12


def _accept_all(drafts, chosen):
    return torch.full((len(drafts),), drafts.shape[1])


def _accept_one_more(drafts, chosen):
    return (accept_chain(drafts, chosen) + 1).clamp(max=drafts.shape[1])


def _accept_one_by_one(drafts, chosen):
    return (drafts == chosen[:, :-1]).sum(-1)


def _compare_with_the_next(drafts, chosen):
    return (drafts == chosen[:, 1:]).long().cumprod(-1).sum(-1)


@pytest.mark.parametrize("biased", [_accept_all, _accept_one_more, _accept_one_by_one, _compare_with_the_next])
def test_exact_enumeration_catches_a_bias(biased, make_law):
    law = make_law(3, 3, seed=1)
    assert max(law.distance(_emitted(law, list(d), biased)) for d in itertools.product(range(3), repeat=2)) > 0.01
