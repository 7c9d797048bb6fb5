"""What was drafted before a row: its part of the history that penalties and bad words look at."""

from __future__ import annotations

import numpy as np

from paceline.engine.plan import Plan
from paceline.engine.tree_layout import node_depths, node_paths

__all__ = ["ChosenDrafts", "drafted_before"]


def drafted_before(plan: Plan) -> np.ndarray:
    """The drafts that each choice row of a plan stands after: its own path, for a tree.

    Returns:
        int64 ``[R, D]``, padded with -1.
    """
    drafts = plan.drafts
    width = drafts.tokens.shape[1]
    paths = _paths(drafts.parents, drafts.lengths, width)
    tokens = np.take_along_axis(drafts.tokens[:, None], np.maximum(paths, 0), axis=2)
    seq, node = np.nonzero(np.arange(width) < drafts.lengths[:, None])
    first_rows = np.cumsum(plan.choice_counts) - plan.choice_counts
    before = np.full((len(plan.choice_rows), paths.shape[2]), -1, dtype=np.int64)
    before[first_rows[seq] + 1 + node] = np.where(paths >= 0, tokens, -1)[seq, node]
    return before


def _paths(parents: np.ndarray | None, lengths: np.ndarray, width: int) -> np.ndarray:
    """int64 ``[requests, width, depth]``: each node's ancestors and itself, padded with -1."""
    if parents is not None:
        return node_paths(parents, node_depths(parents, lengths))
    chain = np.tile(np.arange(width), (width, 1))
    return np.broadcast_to(np.where(np.tri(width, dtype=bool), chain, -1), (len(lengths), width, width))


class ChosenDrafts:
    """The drafts of one ``propose`` call so far, as far as ``choose`` gave them.

    Args:
        num_known: int64 ``[requests]``, known tokens of each.
        width: Most tokens that any of them may draft.
    """

    def __init__(self, num_known: np.ndarray, width: int) -> None:
        self._num_known = num_known
        self._tokens = np.full((len(num_known), width), -1, dtype=np.int64)

    def before(self, positions: np.ndarray) -> np.ndarray:
        """What each request drafted before these positions (int64 ``[requests]``): int64 ``[requests, width]``."""
        depths = positions - self._num_known
        return np.where(np.arange(self._tokens.shape[1]) < depths[:, None], self._tokens, -1)

    def keep(self, positions: np.ndarray, tokens: np.ndarray) -> None:
        """Note the tokens int64 ``[requests]`` chosen for these positions; the latest choice for a position holds."""
        depths = positions - self._num_known
        inside = np.flatnonzero((depths >= 0) & (depths < self._tokens.shape[1]))
        self._tokens[inside, depths[inside]] = tokens[inside]
