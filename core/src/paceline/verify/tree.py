"""Acceptance of trees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["AcceptedPath", "accept_tree"]


@dataclass(slots=True)
class AcceptedPath:
    """The path of each row along the target's choices.

    Attributes:
        nodes: int64 ``[B, N]``, followed nodes from the root down, padded with -1.
        num_accepted: int64 ``[B]``, their number.
    """

    nodes: Tensor
    num_accepted: Tensor


def accept_tree(tokens: Tensor, parents: Tensor, chosen: Tensor) -> AcceptedPath:
    """Walk each tree from the last committed token to the child that equals the target's choice, while there is one.

    The emitted tokens are those of the path and ``chosen[b, 1 + its last node]`` (``chosen[b, 0]`` if it is empty). Of
    equal siblings the first is followed.

    Args:
        tokens: int64 ``[B, N]``, padded with -1.
        parents: int64 ``[B, N]``, index of the parent node, -1 = the last committed token. Nodes on a cycle cannot be
            reached.
        chosen: int64 ``[B, N + 1]``, the target's token after the last committed token and after each node.
    """
    num_nodes = tokens.shape[1]
    order = torch.arange(num_nodes, device=tokens.device)
    nodes = torch.full_like(tokens, -1)
    node = tokens.new_full((tokens.shape[0], 1), -1)
    for depth in range(num_nodes):
        child = (parents == node) & (tokens == chosen.gather(1, node + 1)) & (tokens >= 0)
        first = torch.where(child, order, num_nodes).amin(-1, keepdim=True)
        followed = first < num_nodes
        if not followed.any():
            break
        node = torch.where(followed, first, node)
        nodes[:, depth : depth + 1] = torch.where(followed, first, -1)
    return AcceptedPath(nodes, (nodes >= 0).sum(-1))
