"""The candidates of growing trees, and the choice among them (EAGLE-2, section 4.2: reranking)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.api import Drafts

__all__ = ["Candidates", "Pool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Nodes that the trees of a batch may get, ``[requests, n]`` each.

    Attributes:
        tokens: int64, the target's ids.
        log_confidence: float32, joint with the ancestors'.
        parents: int64, numbers in the pool, -1 = the last known token.
    """

    tokens: Tensor
    log_confidence: Tensor
    parents: Tensor


class Pool:
    """All candidates of the trees of a batch, level by level; parents precede their children."""

    def __init__(self) -> None:
        self._levels: list[Candidates] = []
        self.size = 0

    def add(self, candidates: Candidates) -> None:
        """Add a level."""
        self._levels.append(candidates)
        self.size += candidates.tokens.shape[1]

    def best(self, budgets: np.ndarray) -> Drafts:
        """The ``budgets`` (int64 ``[requests]``) likeliest candidates of each request, as trees.

        A child is no likelier than its parent and comes after it, so that equal ones are taken in order and every
        chosen node has its parent chosen.
        """
        if not self.size:
            return Drafts.empty(len(budgets))
        tokens, log_confidence, parents = (
            torch.cat([getattr(level, name) for level in self._levels], dim=1).cpu().numpy()
            for name in ("tokens", "log_confidence", "parents")
        )
        lengths = np.minimum(budgets, self.size)
        order = np.argsort(-log_confidence, axis=1, kind="stable")[:, : lengths.max()]
        kept = np.sort(np.where(np.arange(order.shape[1]) < lengths[:, None], order, self.size), axis=1)
        return _trees(kept, lengths, tokens, parents, np.exp(log_confidence))


def _trees(
    kept: np.ndarray, lengths: np.ndarray, tokens: np.ndarray, parents: np.ndarray, confidence: np.ndarray
) -> Drafts:
    """The candidates numbered ``kept`` ``[requests, width]``, ascending, padded with the pool's size."""
    num_requests, size = tokens.shape
    places = np.full((num_requests, size + 1), -1)
    np.put_along_axis(places, kept, np.broadcast_to(np.arange(kept.shape[1]), kept.shape), axis=1)
    is_used, at = kept < size, np.minimum(kept, size - 1)
    above = np.take_along_axis(parents, at, axis=1)
    return Drafts(
        tokens=np.where(is_used, np.take_along_axis(tokens, at, axis=1), -1),
        lengths=lengths,
        parents=np.where(is_used & (above >= 0), np.take_along_axis(places, np.maximum(above, 0), axis=1), -1),
        confidence=np.where(is_used, np.take_along_axis(confidence, at, axis=1), 0.0),
    )
