from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from paceline.api import Drafts, DraftShape, PluginError
from paceline.engine.checks import check_budgets, check_drafts, check_lengths

CHAIN, TREE = DraftShape.CHAIN, DraftShape.TREE


def drafts(tokens: Any, lengths: Any, parents: Any = None) -> Drafts:
    return Drafts(tokens=tokens, lengths=lengths, parents=parents)


def checked(tokens: Any, lengths: Any, parents: Any = None, shape: DraftShape = TREE, budgets: Any = (3, 3)) -> Any:
    return check_drafts(drafts(tokens, lengths, parents), np.array(budgets), 10, shape)


FULL = np.array([[1, 2, 3], [4, 5, 6]])


def test_drafts_come_back_on_the_host_and_trimmed() -> None:
    rows = checked(torch.tensor([[1, 2, 99], [4, -7, -1]]), torch.tensor([2, 1], dtype=torch.int32))
    assert rows.tokens.tolist() == [[1, 2], [4, -1]] and rows.tokens.dtype == np.int64
    assert rows.lengths.tolist() == [2, 1] and rows.parents is None


def test_a_tree_keeps_its_parents() -> None:
    rows = checked(FULL, [3, 1], np.array([[-1, -1, 1], [-1, 5, 5]]))
    assert rows.parents is not None and rows.parents.tolist() == [[-1, -1, 1], [-1, -1, -1]]


def test_no_drafts_at_all() -> None:
    rows = check_drafts(Drafts.empty(2), np.array([3, 3]), 10, CHAIN)
    assert rows.tokens.shape == (2, 0) and rows.lengths.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: check_drafts([[1]], np.array([1]), 10, CHAIN), r"propose\(\) returned list; return paceline.api.Draf"),
        (
            lambda: checked(FULL.astype(float), [1, 1]),
            r"Drafts.tokens is float64 of shape \(2, 3\); give integers with",
        ),
        (lambda: checked([1, 2], [1, 1]), r"Drafts.tokens is int64 of shape \(2,\); give integers with 2 dimension"),
        (lambda: checked(FULL, [[1, 1]]), r"Drafts.lengths is int64 of shape \(1, 2\); give integers with 1 dimension"),
        (lambda: checked(FULL[:1], [1, 1]), "Drafts has 1 rows and 2 lengths for 2 requests"),
        (lambda: checked(FULL, [1]), "Drafts has 2 rows and 1 lengths for 2 requests"),
        (
            lambda: checked(FULL, [1, 3], budgets=(3, 2)),
            r"lengths\[1\] is 3; it must be between 0 and the request's bu",
        ),
        (lambda: checked(FULL, [-1, 1]), r"Drafts.lengths\[0\] is -1; it must be between 0 and the request's budget"),
        (lambda: checked(FULL, [4, 1], budgets=(9, 9)), r"Drafts.lengths\[0\] is 4; it must be at most the width 3"),
        (lambda: checked(FULL + 5, [1, 3]), r"Drafts.tokens\[1, 1\] is 10; it must be in \[0, 10\)"),
        (lambda: checked(FULL - 5, [0, 1]), r"Drafts.tokens\[1, 0\] is -1; it must be in \[0, 10\)"),
        (lambda: checked(FULL, [1, 1], FULL * 0 - 1, CHAIN), "Drafts.parents is given, but .* say shape = chain"),
        (lambda: checked(FULL, [1, 1], [[-1], [-1]]), r"Drafts.parents has shape \(2, 1\), Drafts.tokens \(2, 3\)"),
        (lambda: checked(FULL, [3, 1], [[-1, 1, 0], [-1, 0, 0]]), r"parents\[0, 1\] is 1; it must be -1 or an earlier"),
        (lambda: checked(FULL, [3, 1], [[-2, 0, 0], [-1, 0, 0]]), r"parents\[0, 0\] is -2; it must be -1 or an earlie"),
        (
            lambda: check_budgets(np.array([1.0]), 1),
            r"budgets is float64 of shape \(1,\); give integers with 1 dimensi",
        ),
        (lambda: check_budgets([1, 2, 3], 2), "budgets has 3 entries for 2 requests"),
        (lambda: check_budgets([1, -2], 2), r"budgets\[1\] is -2; it must be 0 or more"),
        (lambda: check_lengths([1], np.array([1, 1])), "trimmed lengths has 1 entries for 2 requests"),
        (lambda: check_lengths([1, 2], np.array([1, 1])), r"trimmed lengths\[1\] is 2; it must be between 0 and the"),
        (lambda: check_lengths([-1, 1], np.array([1, 1])), r"trimmed lengths\[0\] is -1; it must be between 0 and the"),
    ],
)
def test_what_a_plugin_answers_wrongly_is_named(wrong: Any, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        wrong()
