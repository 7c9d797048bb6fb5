"""The logits pipeline: allowed ids, bans, bias, penalties, temperature, min-p, top-k, top-p, in this order.

Each row's scores depend on that row alone, bit for bit: only maxima, single correctly rounded operations, sorted values
and integer sums are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from paceline.sampling.edits import edit
from paceline.sampling.exact_math import exp_mass, log
from paceline.sampling.noise import row_slices
from paceline.sampling.rows import RowParams

__all__ = ["process"]

NUCLEUS_WIDTHS = (64, 1024, 8192)

_Floor = Callable[[Tensor, Tensor], Tensor]


def process(logits: Tensor, rows: RowParams) -> Tensor:
    """Turn raw logits into scores.

    Args:
        logits: float32 ``[R, V]``, V without padding ids; not changed.
        rows: Their parameters.

    Returns:
        float32 ``[R, V]``: ``(logits - max) / temperature`` with -inf at excluded ids. Ties at a threshold are kept.
        Greedy rows: the logits with the edits. May be ``logits`` itself. A row with NaN keeps NaN somewhere.
    """
    assert logits.dtype == torch.float32 and logits.shape[0] == rows.temperature.shape[0]
    scores = edit(logits, rows.allowed, rows.banned, rows.bias, rows.penalties)
    if rows.all_greedy:
        return scores
    scores = _scale(scores, rows.temperature)
    if rows.any_min_p:
        _filter(scores, (rows.min_p > 0) & (rows.temperature > 0), _min_p_floor, rows.min_p)
    if rows.any_top_k:
        _filter(scores, (rows.top_k > 0) & (rows.temperature > 0), _top_k_floor, rows.top_k)
    if rows.any_top_p:
        _filter(scores, (rows.top_p < 1) & (rows.temperature > 0), _top_p_floor, rows.top_p)
    return scores


def _scale(scores: Tensor, temperature: Tensor) -> Tensor:
    sampled = (temperature > 0)[:, None]
    peak = torch.where(sampled, scores.amax(-1, keepdim=True), 0.0)
    return scores.sub(peak).div_(torch.where(sampled, temperature[:, None], 1.0))


def _filter(scores: Tensor, wanted: Tensor, floor_of: _Floor, bounds: Tensor) -> None:
    index = wanted.nonzero().squeeze(-1)
    for rows in row_slices(len(index), scores.shape[1]):
        part = scores[index[rows]]
        floor = floor_of(part, bounds[index[rows]])
        scores[index[rows]] = part.masked_fill_(part < floor[:, None], -torch.inf)


def _min_p_floor(scores: Tensor, min_p: Tensor) -> Tensor:
    return log(min_p.to(torch.float64)).to(torch.float32)


def _top_k_floor(scores: Tensor, top_k: Tensor) -> Tensor:
    top_k = top_k.clamp(max=scores.shape[1])
    best = scores.topk(int(top_k.max())).values
    return best.gather(1, top_k[:, None] - 1).squeeze(1)


def _top_p_floor(scores: Tensor, top_p: Tensor) -> Tensor:
    """The score at which the sorted mass first reaches ``top_p`` of the total; sorts no further than it must."""
    target = exp_mass(scores).sum(-1).to(torch.float64) * top_p
    floor = torch.full_like(top_p, -torch.inf)
    pending = torch.arange(len(scores), device=scores.device)
    for width in _widths(scores.shape[1]):
        best = scores[pending].topk(width).values
        missing = exp_mass(best).cumsum(-1).to(torch.float64) < target[pending, None]
        covered = ~missing[:, -1]
        last = missing.sum(-1, keepdim=True).clamp_(max=width - 1)
        floor[pending[covered]] = best.gather(1, last).squeeze(1)[covered]
        pending = pending[~covered]
        if not len(pending):
            break
    return floor


def _widths(vocab_size: int) -> Iterator[int]:
    yield from (width for width in NUCLEUS_WIDTHS if width < vocab_size)
    yield vocab_size
