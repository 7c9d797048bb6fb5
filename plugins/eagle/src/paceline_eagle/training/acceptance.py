"""Acceptance lengths replayed on recorded greedy answers, without an engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from paceline_eagle.head import Head
from paceline_eagle.training.batches import Batch
from paceline_eagle.training.objective import Teacher, matches

__all__ = ["Acceptance", "replay", "replayed"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Verify steps with drafts, and the drafts accepted in them.

    Attributes:
        num_steps: Verify steps.
        num_accepted: Drafts accepted in all of them.
        first_right: How often the first draft was accepted.
    """

    num_steps: int
    num_accepted: int
    first_right: int

    @property
    def length(self) -> float:
        """Tokens per verify step, the target's own among them."""
        return 1 + self.num_accepted / max(self.num_steps, 1)

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(
            self.num_steps + other.num_steps,
            self.num_accepted + other.num_accepted,
            self.first_right + other.first_right,
        )


def replay(right: np.ndarray) -> Acceptance:
    """Walk along one answer as the engine would.

    Args:
        right: bool ``[drafts, rows]`` of one sample's answer: whether draft ``j`` in a row's slot is the token that
            followed. A step that begins at row ``b`` has its draft ``j`` in row ``b + j``.
    """
    num_drafts, num_rows = right.shape
    row = num_steps = num_accepted = first_right = 0
    while row < num_rows:
        accepted = 0
        while accepted < num_drafts and row + accepted < num_rows and right[accepted, row + accepted]:
            accepted += 1
        num_steps += 1
        num_accepted += accepted
        first_right += accepted > 0
        row += accepted + 1
    return Acceptance(num_steps, num_accepted, first_right)


def replayed(head: Head, teacher: Teacher, batches: list[Batch], num_drafts: int) -> Acceptance:
    """Acceptance on the answers of ``batches``, chains of ``num_drafts``."""
    total = Acceptance(0, 0, 0)
    for batch in batches:
        right = matches(head, teacher, batch, num_drafts).numpy()
        rows = batch.rows(0).cpu()
        for sample in torch.unique(batch.sequence[rows.to(batch.sequence.device)]).tolist():
            own = rows[(batch.sequence.cpu()[rows] == sample)].numpy()
            total = total + replay(right[:, own])
    return total
