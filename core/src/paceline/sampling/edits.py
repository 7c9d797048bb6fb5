"""Edits of raw logits that come before the temperature: allowed ids, bans, biases and penalties, in this order.

All of them are elementwise and correctly rounded, so that a row's scores depend on that row alone, bit for bit. Each is
a function of the row's own history: the request's prompt and output, and the tokens drafted before the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.sampling.noise import row_slices

__all__ = ["PROMPT_BIT", "AllowedIds", "LogitBias", "Penalties", "edit"]

PROMPT_BIT = 1 << 30


@dataclass(slots=True)
class AllowedIds:
    """Rows that may only choose among some ids.

    Attributes:
        rows: int64 ``[A]``, which rows.
        masks: bool ``[M, V]``, true where an id may be chosen.
        index: int64 ``[A]``, each row's mask.
    """

    rows: Tensor
    masks: Tensor
    index: Tensor


@dataclass(slots=True)
class LogitBias:
    """Numbers added to some logits; no pair of row and id stands twice.

    Attributes:
        rows: int64 ``[N]``.
        ids: int64 ``[N]``.
        values: float32 ``[N]``.
    """

    rows: Tensor
    ids: Tensor
    values: Tensor


@dataclass(slots=True)
class Penalties:
    """Penalties for tokens that a row has seen.

    Attributes:
        rows: int64 ``[P]``, which rows.
        counts: int32 ``[M, V]``: how often each id was emitted, plus ``PROMPT_BIT`` if it stands in the prompt.
        index: int64 ``[P]``, each row's counts.
        drafted: int64 ``[P, D]``, tokens drafted before the row, padded with -1; they count as emitted.
        repetition: float32 ``[P]``: positive logits of seen ids are divided by it, others multiplied; 1 = off.
        presence: float32 ``[P]``: taken off the logits of emitted ids; 0 = off.
        frequency: float32 ``[P]``: taken off once for each time that the id was emitted; 0 = off.
    """

    rows: Tensor
    counts: Tensor
    index: Tensor
    drafted: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor


def edit(
    logits: Tensor,
    allowed: Sequence[AllowedIds],
    banned: Sequence[tuple[int, Sequence[int] | np.ndarray]],
    bias: LogitBias | None,
    penalties: Penalties | None,
) -> Tensor:
    """Logits float32 ``[R, V]`` with the edits; ``logits`` itself, which is never changed, if there are none.

    A NaN stays, also at an id that may not be chosen: its row has no scores to trust.
    """
    if not allowed and not banned and bias is None and penalties is None:
        return logits
    scores = logits.clone()
    for ids in allowed:
        _allow(scores, ids)
    if banned:
        _ban(scores, banned)
    if bias is not None:
        scores[bias.rows, bias.ids] += bias.values
    if penalties is not None:
        _penalise(scores, penalties)
    return scores


def _allow(scores: Tensor, allowed: AllowedIds) -> None:
    own = scores[allowed.rows]
    scores[allowed.rows] = own.masked_fill_(~(allowed.masks[allowed.index] | own.isnan()), -torch.inf)


def _ban(scores: Tensor, banned: Sequence[tuple[int, Sequence[int] | np.ndarray]]) -> None:
    counts = [len(ids) for _, ids in banned]
    rows = torch.from_numpy(np.repeat([row for row, _ in banned], counts)).to(scores.device)
    ids = torch.from_numpy(np.concatenate([np.asarray(ids, dtype=np.int64) for _, ids in banned])).to(scores.device)
    own = scores[rows, ids]
    scores[rows, ids] = own.masked_fill_(~own.isnan(), -torch.inf)


def _penalise(scores: Tensor, penalties: Penalties) -> None:
    for part in row_slices(len(penalties.rows), scores.shape[1]):
        rows = penalties.rows[part]
        counts = _counts(penalties, part)
        own = scores[rows]
        factor = torch.where(counts != 0, penalties.repetition[part, None], 1.0)
        own = torch.where(own > 0, own / factor, own * factor)
        emitted = counts.bitwise_and_(PROMPT_BIT - 1)
        own -= penalties.frequency[part, None] * emitted
        own -= penalties.presence[part, None] * (emitted > 0)
        scores[rows] = own


def _counts(penalties: Penalties, part: slice) -> Tensor:
    counts = penalties.counts[penalties.index[part]]
    drafted = penalties.drafted[part]
    return counts.scatter_add_(1, drafted.clamp(min=0), (drafted >= 0).to(counts.dtype))
