"""Where the nodes of draft trees stand: depths, and the slots of each node's path."""

from __future__ import annotations

import numpy as np

__all__ = ["node_depths", "node_paths"]


def node_depths(parents: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Depth of each node, 0 for children of the last committed token.

    Args:
        parents: int64 ``[requests, width]``; a parent precedes its children, -1 = the last committed token.
        lengths: int64 ``[requests]``.

    Returns:
        int64 ``[requests, width]``; 0 beyond ``lengths``.
    """
    depths = np.zeros_like(parents)
    rows = np.arange(len(parents))
    for node in range(parents.shape[1]):
        parent = parents[:, node]
        depths[:, node] = np.where((parent >= 0) & (node < lengths), depths[rows, parent] + 1, 0)
    return depths


def node_paths(parents: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Each node's ancestors and itself in depth order.

    Returns:
        int64 ``[requests, width, max depth + 1]`` of node indices, padded with -1.
    """
    num_requests, width = parents.shape
    paths = np.full((num_requests, width, int(depths.max(initial=0)) + 1), -1, dtype=np.int64)
    rows, nodes = np.indices((num_requests, width))
    current = nodes.copy()
    for _ in range(paths.shape[2]):
        live = current >= 0
        at = (rows[live], nodes[live], depths[rows[live], current[live]])
        paths[at] = current[live]
        current[live] = parents[rows[live], current[live]]
    return paths
