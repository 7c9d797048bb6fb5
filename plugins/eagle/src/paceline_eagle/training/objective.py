"""What a head is trained for, and how well it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from paceline_eagle.head import Head
from paceline_eagle.training.batches import Batch
from paceline_eagle.training.unroll import unrolled

__all__ = ["STEP_WEIGHT", "StepResult", "Teacher", "losses", "matches"]

STEP_WEIGHT = 0.8
"""Weight of draft ``j`` in the loss is ``STEP_WEIGHT ** j`` (EAGLE-3)."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target as the head sees it.

    Attributes:
        embed: ``int64 [n] -> float32 [n, hidden]``: its embeddings.
        logits: ``final features [n, hidden] -> float32 [n, draft vocabulary]``: its logits of the drafted ids.
        draft_ids: int64 ``[vocabulary]``: draft id of a target id, -1 for those that cannot be drafted.
    """

    embed: Callable[[Any], Any]
    logits: Callable[[Any], Any]
    draft_ids: Any


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step of the unrolled head.

    Attributes:
        loss: float32 scalar.
        num_right: Drafts equal to the token that followed.
        num_rows: Drafts made, those whose token cannot be drafted among them.
    """

    loss: Any
    num_right: int
    num_rows: int


def losses(head: Head, teacher: Teacher, batch: Batch, num_steps: int, feature_weight: float) -> list[StepResult]:
    """Soft cross entropy of each step against the target's own distribution over the draft vocabulary.

    Rows whose next token cannot be drafted teach nothing, so that each row counts by the share of the target's
    probability that the draft vocabulary holds.

    Args:
        head: The head.
        teacher: The target.
        batch: Rows.
        num_steps: Drafts that follow each other.
        feature_weight: Weight of the smooth L1 distance between the head's readout and the target's final feature; 0
            leaves it out.
    """
    with torch.no_grad():
        embeddings = teacher.embed(batch.tokens)
        teaching = batch.rows(0)
        row_of = torch.full_like(batch.tokens, -1)
        row_of[teaching] = torch.arange(len(teaching), device=row_of.device)
        probabilities = teacher.logits(batch.final[teaching]).softmax(-1)
    results = []
    for rows, states in unrolled(head, batch, embeddings, num_steps):
        labels = teacher.draft_ids[batch.next_tokens[rows]]
        known = labels >= 0
        logits = head.logits(states)
        cross = -(probabilities[row_of[rows]] * logits.log_softmax(-1)).sum(-1)
        loss = cross[known].sum() / known.sum().clamp(min=1)
        if feature_weight:
            distance = functional.smooth_l1_loss(head.readout(states), batch.final[rows])
            loss = loss + feature_weight * distance
        results.append(StepResult(loss, int((logits.argmax(-1) == labels).sum()), len(rows)))
    return results


def matches(head: Head, teacher: Teacher, batch: Batch, num_steps: int) -> Any:
    """bool ``[num_steps, T]``: whether draft ``j`` in the row's slot is the token that followed it."""
    with torch.no_grad():
        out = torch.zeros(num_steps, len(batch.tokens), dtype=torch.bool)
        for step, (rows, states) in enumerate(unrolled(head, batch, teacher.embed(batch.tokens), num_steps)):
            labels = teacher.draft_ids[batch.next_tokens[rows]]
            out[step, rows.cpu()] = (head.logits(states).argmax(-1) == labels).cpu()
    return out
