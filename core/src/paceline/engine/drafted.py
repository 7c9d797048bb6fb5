"""What was drafted before a row: its part of the history that penalties, bad words and constraints look at."""

from __future__ import annotations

import numpy as np

from paceline.engine.mask_table import MaskTable
from paceline.engine.plan import DraftRows, Plan
from paceline.engine.tree_layout import node_depths, node_paths

__all__ = ["ChosenDrafts", "cut_forbidden", "drafted_before"]


def drafted_before(plan: Plan) -> np.ndarray:
    """The drafts that each choice row of a plan stands after: its own path, for a tree.

    Returns:
        int64 ``[R, D]``, padded with -1.
    """
    drafts = plan.drafts
    tokens = _path_tokens(drafts)
    seq, node = np.nonzero(np.arange(tokens.shape[1]) < drafts.lengths[:, None])
    first_rows = np.cumsum(plan.choice_counts) - plan.choice_counts
    before = np.full((len(plan.choice_rows), tokens.shape[2]), -1, dtype=np.int64)
    before[first_rows[seq] + 1 + node] = tokens[seq, node]
    return before


def cut_forbidden(drafts: DraftRows, table_rows: np.ndarray, masks: MaskTable) -> DraftRows:
    """Leave out the nodes that constraints forbid, as where a grammar ends, and what hangs on them.

    Args:
        drafts: Of some requests.
        table_rows: int64 ``[requests]``.
        masks: Masks of the constrained ones among them.
    """
    constrained = [index for index in np.flatnonzero(drafts.lengths).tolist() if table_rows[index] in masks]
    if not constrained:
        return drafts
    keep = np.ones(drafts.tokens.shape, dtype=bool)
    paths = _path_tokens(drafts)
    for index in constrained:
        own = paths[index, : drafts.lengths[index]]
        last = (own >= 0).sum(axis=1, keepdims=True) - 1
        before = np.where(np.arange(own.shape[1]) < last, own, -1)
        tokens = np.take_along_axis(own, last, axis=1)[:, 0]
        keep[index, : len(own)] = masks.permits(int(table_rows[index]), before, tokens)
    return drafts.kept(keep)


def _path_tokens(drafts: DraftRows) -> np.ndarray:
    """int64 ``[requests, width, depth]``: tokens of each node's ancestors, then its own, padded with -1."""
    paths = _paths(drafts.parents, drafts.lengths, drafts.tokens.shape[1])
    tokens = np.take_along_axis(drafts.tokens[:, None], np.maximum(paths, 0), axis=2)
    return np.where(paths >= 0, tokens, -1)


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
