"""Log-probabilities of raw logits, as reported to the caller."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.sampling.exact_math import MASS_BITS, exp_mass, log
from paceline.sampling.noise import row_slices

__all__ = ["LOGPROB_FLOOR", "token_logprobs"]

LOGPROB_FLOOR = -9999.0


def token_logprobs(logits: Tensor, tokens: Tensor, top_n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities before temperature, filters and bans; a row's result does not depend on other rows.

    Args:
        logits: Raw, float32 ``[R, V]``.
        tokens: int64 ``[R]``, the emitted tokens.
        top_n: How many of the best tokens to report, at most V; the lowest id first among equals.

    Returns:
        float32 ``[R]``, int64 ``[R, top_n]`` and float32 ``[R, top_n]``, best first. Values are finite: none is below
        ``LOGPROB_FLOOR``, which also stands for minus infinity and for rows with NaN.
    """
    totals = _log_totals(logits)
    top_ids = _top_ids(logits, top_n)
    ids = torch.cat([tokens[:, None], top_ids], dim=1)
    values = (logits.gather(1, ids).to(torch.float64) - totals[:, None]).to(torch.float32)
    values = values.nan_to_num_(nan=LOGPROB_FLOOR, posinf=LOGPROB_FLOOR).clamp_(min=LOGPROB_FLOOR)
    return values[:, 0], top_ids, values[:, 1:]


def _log_totals(logits: Tensor) -> Tensor:
    peak = logits.amax(-1, keepdim=True)
    mass = [exp_mass(logits[rows] - peak[rows]).sum(-1) for rows in row_slices(*logits.shape)]
    scaled = torch.cat(mass).to(torch.float64).mul_(2.0**-MASS_BITS)
    return log(scaled).add_(peak.squeeze(1))


def _top_ids(logits: Tensor, top_n: int) -> Tensor:
    """Sort by one integer per token, made of score and id, since ``topk`` promises no order among equals."""
    if top_n == 0:
        return torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
    last = logits.shape[1] - 1
    reversed_ids = torch.arange(last, -1, -1, device=logits.device)
    ranked = [_sortable(logits[rows]).add_(reversed_ids).topk(top_n).values for rows in row_slices(*logits.shape)]
    return torch.cat(ranked).bitwise_and_(0xFFFFFFFF).neg_().add_(last)


def _sortable(scores: Tensor) -> Tensor:
    """int64 whose upper half orders as the float32 do (-0.0 as 0.0) and whose lower half is 0."""
    bits = (scores + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ordered.to(torch.int64).bitwise_left_shift_(32)
