"""The target as a teacher, from a session."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from paceline.api import Session
from paceline_eagle.training.initial import TargetWeights
from paceline_eagle.training.objective import Teacher

__all__ = ["teacher_of"]


def teacher_of(session: Session, weights: TargetWeights, ids: np.ndarray, features: Any) -> Teacher:
    """Teach the ids with the target's embeddings and logits.

    Args:
        session: Kept open as long as the teacher is used.
        weights: The target's.
        ids: int64 ``[draft vocab]``.
        features: Some final features ``[n, hidden]``: they tell whether logits are the plain product with the rows of
            the LM head, which is many times cheaper than the target's own logits of the whole vocabulary.
    """
    device, dtype = session.facts.device, getattr(torch, session.facts.dtype)
    chosen = torch.from_numpy(ids).to(device)
    rows = weights.output_rows(ids).to(device)
    draft_ids = torch.full((int(session.facts.config["vocab_size"]),), -1, dtype=torch.int64, device=device)
    draft_ids[chosen] = torch.arange(len(ids), device=device)

    def embed(tokens: Any) -> Any:
        return session.embed(tokens).clone().float()  # cloned: what inference mode made cannot be trained on

    def own_logits(final: Any) -> Any:
        return session.logits(final.to(dtype))[:, chosen].clone()

    def products(final: Any) -> Any:
        return final @ rows.T

    some = features.to(device, torch.float32)
    is_plain = torch.allclose(own_logits(some).float(), products(some), rtol=2e-2, atol=2e-2)
    return Teacher(embed, products if is_plain else own_logits, draft_ids)
