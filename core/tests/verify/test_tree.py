from __future__ import annotations

import itertools
import math

import pytest
import torch

from paceline.verify.chain import accept_chain
from paceline.verify.tree import accept_tree


def walk(tokens, parents, chosen):
    """One tree, in plain loops."""
    path, node = [], -1
    while True:
        children = [j for j, (t, p) in enumerate(zip(tokens, parents, strict=True)) if p == node and t >= 0]
        follow = [j for j in children if tokens[j] == chosen[node + 1]]
        if not follow:
            return path
        node = follow[0]
        path.append(node)


def accept(tokens, parents, chosen):
    path = accept_tree(torch.tensor([tokens]), torch.tensor([parents]), torch.tensor([chosen]))
    return path.nodes[0].tolist(), path.num_accepted.tolist()[0]


def test_walks_to_the_child_that_was_chosen():
    #        root -> 0:5 -> 2:7 -> 4:8 ; 0 -> 3:9 ; root -> 1:6
    tokens, parents = [5, 6, 7, 9, 8], [-1, -1, 0, 0, 2]
    assert accept(tokens, parents, [5, 7, 0, 8, 0, 1]) == ([0, 2, 4, -1, -1], 3)
    assert accept(tokens, parents, [5, 9, 0, 8, 0, 1]) == ([0, 3, -1, -1, -1], 2)
    assert accept(tokens, parents, [6, 7, 0, 8, 0, 1]) == ([1, -1, -1, -1, -1], 1)
    assert accept(tokens, parents, [4, 7, 0, 8, 0, 1]) == ([-1] * 5, 0)


def test_the_first_of_equal_siblings_is_followed():
    assert accept([3, 3, 4], [-1, -1, 1], [3, 4, 4, 0]) == ([0, -1, -1], 1)


def test_padding_is_never_followed():
    assert accept([3, -1, -1], [-1, 0, -1], [3, -1, -1, -1]) == ([0, -1, -1], 1)
    assert accept([-1, -1], [-1, -1], [-1, -1, -1]) == ([-1, -1], 0)


def test_cycles_are_never_entered():
    assert accept([3, 3], [-1, 1], [3, 3, 3]) == ([0, -1], 1)
    assert accept([3, 3], [1, 0], [3, 3, 3]) == ([-1, -1], 0)


def test_no_nodes_and_no_rows():
    empty = torch.empty(2, 0, dtype=torch.int64)
    assert accept_tree(empty, empty, torch.ones(2, 1, dtype=torch.int64)).num_accepted.tolist() == [0, 0]
    none = torch.empty(0, 3, dtype=torch.int64)
    assert accept_tree(none, none, torch.empty(0, 4, dtype=torch.int64)).nodes.shape == (0, 3)


def _random_trees(count, num_nodes, vocab, generator):
    tokens = torch.randint(-1, vocab, (count, num_nodes), generator=generator)
    parents = (torch.rand(count, num_nodes, generator=generator) * (torch.arange(num_nodes) + 1)).long() - 1
    return tokens, parents


@pytest.mark.parametrize("num_nodes", [1, 2, 5, 12])
def test_batches_equal_a_loop(num_nodes):
    generator = torch.Generator().manual_seed(num_nodes)
    tokens, parents = _random_trees(600, num_nodes, 2, generator)
    chosen = torch.randint(0, 2, (600, num_nodes + 1), generator=generator)
    result = accept_tree(tokens, parents, chosen)
    rows = zip(tokens.tolist(), parents.tolist(), chosen.tolist(), strict=True)
    paths = [walk(*row) for row in rows]
    assert result.nodes.tolist() == [path + [-1] * (num_nodes - len(path)) for path in paths]
    assert result.num_accepted.tolist() == [len(path) for path in paths]


def test_a_chain_is_a_tree():
    generator = torch.Generator().manual_seed(3)
    drafts = torch.randint(-1, 2, (300, 4), generator=generator)
    chosen = torch.randint(0, 2, (300, 5), generator=generator)
    parents = (torch.arange(4) - 1).expand(300, 4)
    assert torch.equal(accept_tree(drafts, parents, chosen).num_accepted, accept_chain(drafts, chosen))


def _contexts(tokens, parents):
    """The tokens on the way to the root (first) and to each node."""
    contexts = [()]
    for token, parent in zip(tokens, parents, strict=True):
        contexts.append((*contexts[parent + 1], token))
    return contexts


def _emitted(law, tokens, parents, rule):
    contexts = _contexts(tokens, parents)
    outcomes = torch.tensor(list(itertools.product(range(law.vocab), repeat=len(contexts))))
    shape = (len(outcomes), -1)
    path = rule(torch.tensor([tokens]).expand(shape), torch.tensor([parents]).expand(shape), outcomes)
    emitted: dict[tuple[int, ...], float] = {}
    for chosen, nodes, count in zip(outcomes.tolist(), path.nodes.tolist(), path.num_accepted.tolist(), strict=True):
        weight = math.prod(law.after[context][token] for context, token in zip(contexts, chosen, strict=True))
        last = nodes[count - 1] if count else -1
        run = (*(tokens[node] for node in nodes[:count]), chosen[last + 1])
        emitted[run] = emitted.get(run, 0.0) + weight
    return emitted


TREES = [
    ([0, 1, 0, 1], [-1, -1, 0, 0]),
    ([2, 0, 1, 2], [-1, -1, 1, 1]),
    ([1, 1, 2, 2], [-1, -1, 0, 1]),
    ([0, 1, 2, 0], [-1, 0, 0, -1]),
]


@pytest.mark.parametrize("vocab", [3, 4])
@pytest.mark.parametrize(("tokens", "parents"), TREES)
def test_exact_enumeration(vocab, tokens, parents, make_law):
    law = make_law(vocab, 3, seed=vocab)
    assert law.distance(_emitted(law, tokens, parents, accept_tree)) < 1e-12


def _best_sibling(tokens, parents, chosen):
    """Follow the chosen token through any node of that depth, not only through the node reached."""
    return accept_tree(tokens, torch.where(parents >= 0, torch.zeros_like(parents), parents), chosen)


def _read_one_row_late(tokens, parents, chosen):
    return accept_tree(tokens, parents, chosen.roll(1, dims=1))


@pytest.mark.parametrize("biased", [_best_sibling, _read_one_row_late])
def test_exact_enumeration_catches_a_bias(biased, make_law):
    law = make_law(3, 3, seed=2)
    assert max(law.distance(_emitted(law, *tree, biased)) for tree in TREES) > 0.01
