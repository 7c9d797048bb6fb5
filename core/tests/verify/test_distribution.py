"""Chi-square through the real sampler, at every position, with drafts that try to bend the distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.sampling.choice import sample
from paceline.sampling.rows import RowParams
from paceline.verify.chain import accept_chain
from paceline.verify.tree import accept_tree

VOCAB, LENGTH, TRIALS = 16, 3, 200_000
WIDTH = 2


@pytest.fixture(scope="module")
def table():
    """Logits float32 ``[LENGTH + WIDTH, VOCAB, VOCAB]`` by output index and previous token."""
    return torch.randn(LENGTH + WIDTH, VOCAB, VOCAB, generator=torch.Generator().manual_seed(4)) * 1.2


def _rows(seeds, positions, temperature):
    count = len(seeds)
    return RowParams.build(
        temperature=np.full(count, temperature),
        top_k=np.zeros(count),
        top_p=np.ones(count),
        min_p=np.zeros(count),
        seeds=seeds.numpy(),
        positions=positions.numpy(),
    )


def target_choice(table, seeds, index, previous, temperature=1.0):
    return sample(table[index, previous], _rows(seeds, index + 1000, temperature)).tokens


def one_position_choice(table, seeds, index, previous):
    return sample(table[index, previous], _rows(seeds, torch.zeros_like(index), 1.0)).tokens


def unlikely(table, index, previous):
    return table[index, previous].argmin(-1)


def likely(table, index, previous):
    return table[index, previous].argmax(-1)


def _drafts(table, draft, index, previous):
    columns = []
    for offset in range(WIDTH):
        previous = draft(table, index + offset, previous)
        columns.append(previous)
    return torch.stack(columns, 1)


def step(table, seeds, index, previous, draft, choose, accept):
    """One verification step of every trial: the emitted tokens ``[B, WIDTH + 1]`` and their number."""
    drafts = _drafts(table, draft, index, previous)
    prefix = torch.cat([previous[:, None], drafts], 1)
    chosen = torch.stack([choose(table, seeds, index + i, prefix[:, i]) for i in range(WIDTH + 1)], 1)
    accepted = accept(drafts, chosen)
    order = torch.arange(WIDTH + 1)
    padded = torch.cat([drafts, drafts[:, :1]], 1)
    return torch.where(order < accepted[:, None], padded, chosen), accepted + 1


def run(table, draft, choose=target_choice, accept=accept_chain):
    """``LENGTH`` tokens of every trial, int64 ``[TRIALS, LENGTH]``."""
    out = torch.zeros(TRIALS, LENGTH + WIDTH + 1, dtype=torch.int64)
    index, previous = torch.zeros(TRIALS, dtype=torch.int64), torch.zeros(TRIALS, dtype=torch.int64)
    while (index < LENGTH).any():
        live = (index < LENGTH).nonzero().squeeze(1)
        tokens, count = step(table, live, index[live], previous[live], draft, choose, accept)
        for i in range(WIDTH + 1):
            row = live[i < count]
            out[row, index[row] + i] = tokens[i < count, i]
        index[live] += count
        previous[live] = out[live, index[live] - 1]
    return out[:, :LENGTH]


def excess(tokens, table, chi_square_limit):
    """Largest chi-square over its limit, among the table of the first two tokens and each position's own."""
    law = table.double().softmax(-1)
    pair = law[0, 0][:, None] * law[1]
    marginals = [law[0, 0]]
    for index in range(1, LENGTH):
        marginals.append(marginals[-1] @ law[index])
    checks = [(tokens[:, i], marginals[i]) for i in range(LENGTH)]
    checks.append((tokens[:, 0] * VOCAB + tokens[:, 1], pair.flatten()))
    checks += [(tokens[tokens[:, i - 1] == 3, i], law[i, 3]) for i in range(1, LENGTH)]
    return max(_ratio(cells, probabilities, chi_square_limit) for cells, probabilities in checks)


def _ratio(cells, probabilities, chi_square_limit):
    expected = probabilities * len(cells)
    counts = torch.bincount(cells, minlength=len(probabilities)).double()
    full = expected >= 5
    if not full.any():
        return 0.0
    counts = torch.cat([counts[full], counts[~full].sum()[None]])
    expected = torch.cat([expected[full], expected[~full].sum().clamp(min=1e-9)[None]])
    return float(((counts - expected) ** 2 / expected).sum()) / chi_square_limit(len(expected) - 1)


@pytest.fixture(scope="module")
def honest_runs(table):
    return {draft.__name__: run(table, draft) for draft in (unlikely, likely)}


@pytest.mark.parametrize("draft", ["unlikely", "likely"])
def test_chains_leave_the_distribution_alone(draft, honest_runs, table, chi_square_limit):
    assert excess(honest_runs[draft], table, chi_square_limit) < 1


def test_the_drafts_do_not_even_change_the_tokens(honest_runs):
    assert torch.equal(honest_runs["likely"], honest_runs["unlikely"])


def _accept_first(drafts, chosen):
    return accept_chain(drafts, chosen).clamp(min=1)


def _accept_one_in_fifty(drafts, chosen):
    lucky = torch.arange(len(drafts)) % 50 == 0
    return torch.where(lucky, accept_chain(drafts, chosen).clamp(min=1), accept_chain(drafts, chosen))


def _never_the_rejected(table, seeds, index, previous):
    """What a sampler does that masks the draft after testing it with another coin."""
    masked = table.scatter(-1, table.argmax(-1, keepdim=True), -10.0)
    return sample(masked[index, previous], _rows(seeds, index + 1000, 1.0)).tokens


def _slightly_cold(table, seeds, index, previous):
    return target_choice(table, seeds, index, previous, temperature=0.97)


@pytest.mark.parametrize("biased", [_accept_first, _accept_one_in_fifty])
def test_biased_acceptance_is_caught(biased, table, chi_square_limit):
    assert excess(run(table, unlikely, accept=biased), table, chi_square_limit) > 1.5


@pytest.mark.parametrize("biased", [_never_the_rejected, _slightly_cold, one_position_choice])
def test_biased_choices_are_caught(biased, table, chi_square_limit):
    assert excess(run(table, likely, choose=biased), table, chi_square_limit) > 1.5


def _tree_tokens(table, first, choose_second):
    """Two children of the root and two of the first child; the emitted tokens of each trial and their number."""
    seeds, zeros = torch.arange(TRIALS), torch.zeros(TRIALS, dtype=torch.int64)
    second_level = table[1, first].topk(2).indices
    nodes = torch.tensor([int(first), (int(first) + 5) % VOCAB, *second_level.tolist()])
    tokens, parents = nodes.expand(TRIALS, -1), torch.tensor([-1, -1, 0, 0]).expand(TRIALS, -1)
    contexts = [(0, zeros), *((1 if node < 2 else 2, zeros + nodes[node]) for node in range(4))]
    chosen = torch.stack([choose_second(table, seeds, zeros + depth, context) for depth, context in contexts], 1)
    path = accept_tree(tokens, parents, chosen)
    return chosen, path, path.nodes.amax(-1)


@pytest.mark.parametrize("rank", [0, VOCAB - 1])
def test_trees_leave_the_distribution_alone(rank, table, chi_square_limit):
    law = table.double().softmax(-1)
    first = table[0, 0].argsort(descending=True)[rank]
    chosen, path, last = _tree_tokens(table, first, target_choice)
    assert _ratio(chosen[:, 0], law[0, 0], chi_square_limit) < 1
    for node, depth, token in ((0, 1, first), (1, 1, (first + 5) % VOCAB)):
        reached = path.nodes[:, 0] == node
        assert torch.equal(chosen[reached, 0], torch.full_like(chosen[reached, 0], int(token)))
        assert _ratio(chosen[reached, 1 + node], law[depth, token], chi_square_limit) < 1
    for node in (2, 3):
        token = table[1, first].topk(2).indices[node - 2]
        assert _ratio(chosen[last == node, 1 + node], law[2, token], chi_square_limit) < 1


def test_one_noise_for_all_depths_of_a_tree_is_caught(table, chi_square_limit):
    law = table.double().softmax(-1)
    first = table[0, 0].argmax()
    chosen, path, _ = _tree_tokens(table, first, one_position_choice)
    reached = path.nodes[:, 0] == 0
    assert _ratio(chosen[reached, 1], law[1, first], chi_square_limit) > 1.5
