"""How wide and deep trees grow, and what that takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline_eagle.config import HeadConfig

__all__ = ["TreeShape", "tree_shape"]


@dataclass(frozen=True, slots=True)
class TreeShape:
    """Bounds of a tree.

    Attributes:
        top_k: Children of a node, and nodes of a level that get children.
        depth: Levels, that is tokens of the longest path.
    """

    top_k: int
    depth: int

    def widths(self, budgets: np.ndarray) -> np.ndarray:
        """Nodes of a level that get children, for these numbers of nodes, int64 ``[requests]``."""
        widths: np.ndarray = np.minimum(budgets, self.top_k)
        return widths

    def levels(self, budgets: np.ndarray) -> np.ndarray:
        """Levels for these numbers of nodes, int64 ``[requests]``."""
        levels: np.ndarray = np.minimum(budgets, self.depth)
        return levels

    def num_slots(self, budget: int) -> int:
        """KV slots that drafting ``budget`` nodes takes: those of the nodes that get children."""
        return min(budget, self.top_k) * max(min(budget, self.depth) - 1, 0)


def tree_shape(top_k: int, depth: int, config: HeadConfig) -> TreeShape:
    """The bounds asked for, within what the head knows: no node has more children than there are ids."""
    return TreeShape(min(top_k, config.draft_vocab_size), depth)
