"""The target's choice of a token per row: ``argmax(score + noise)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.native.library import native_library
from paceline.sampling.edits import edit
from paceline.sampling.noise import RowKeys, gumbel_estimate, gumbel_of, row_keys, row_slices
from paceline.sampling.pipeline import process
from paceline.sampling.rows import RowParams

__all__ = ["Choice", "choose", "sample"]

CONTENDER_MARGIN = 1.0


@dataclass(slots=True)
class Choice:
    """One token per row.

    Attributes:
        tokens: int64 ``[R]``; 0 where invalid.
        invalid: bool ``[R]``: the row has NaN, or no finite score is left, so its request must end with an error.
    """

    tokens: Tensor
    invalid: Tensor


def sample(logits: Tensor, rows: RowParams) -> Choice:
    """Process raw logits float32 ``[R, V]`` and choose; the one rule of verifier and coupled proposers.

    On the CPU the native kernel does it, with the same tokens.
    """
    library = native_library() if logits.device.type == "cpu" else None
    if library is None:
        return choose(process(logits, rows), rows)
    columns = (rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.seeds, rows.positions)
    return Choice(*library.sample(edit(logits, rows.allowed, rows.banned, rows.bias, rows.penalties), columns))


def choose(scores: Tensor, rows: RowParams) -> Choice:
    """Choose from processed scores float32 ``[R, V]``.

    Greedy rows take the best score, others the best of score + Gumbel noise of (seed, position, id) (the Gumbel-max
    trick: a sample of softmax(scores)); the lowest id wins a tie. A row's choice does not depend on other rows.
    """
    tokens = scores.argmax(-1)
    invalid = ~scores.gather(1, tokens[:, None]).squeeze(1).isfinite()
    tokens = tokens.masked_fill(invalid, 0)
    if not rows.all_greedy:
        index = ((rows.temperature > 0) & ~invalid).nonzero().squeeze(-1)
        _choose_sampled(scores, rows, index, tokens)
    return Choice(tokens, invalid)


def _choose_sampled(scores: Tensor, rows: RowParams, index: Tensor, tokens: Tensor) -> None:
    filtered = ((rows.top_k > 0) | (rows.top_p < 1) | (rows.min_p > 0))[index]
    keys = row_keys(rows.seeds, rows.positions)
    for find, part in ((_survivors, index[filtered]), (_contenders, index[~filtered])):
        if len(part):
            tokens[part] = _best(scores, keys, part, find(scores, keys, part))


def _survivors(scores: Tensor, keys: RowKeys, part: Tensor) -> Tensor:
    return _found(scores, part, lambda rows: scores[rows] > -torch.inf)


def _contenders(scores: Tensor, keys: RowKeys, part: Tensor) -> Tensor:
    """The few ids that can still win once an estimate of the noise is added; the margin covers its error twice."""
    ids = torch.arange(scores.shape[1], device=scores.device)

    def can_win(rows: Tensor) -> Tensor:
        estimate = gumbel_estimate((keys[0][rows, None], keys[1][rows, None]), ids).add_(scores[rows])
        return estimate >= estimate.amax(-1, keepdim=True) - CONTENDER_MARGIN

    return _found(scores, part, can_win)


def _found(scores: Tensor, part: Tensor, mask_of: Callable[[Tensor], Tensor]) -> Tensor:
    """int64 ``[n, 2]``: index into ``part`` and id, where the mask of a row has the id; a few rows at a time."""
    pieces = row_slices(len(part), scores.shape[1])
    found = [mask_of(part[piece]).nonzero() for piece in pieces]
    for piece, pairs in zip(pieces, found, strict=True):
        pairs[:, 0] += piece.start
    return torch.cat(found)


def _best(scores: Tensor, keys: RowKeys, part: Tensor, found: Tensor) -> Tensor:
    """Of the pairs found, the best id of each row of ``part``, the lowest one in a tie."""
    num_rows, vocab_size = len(part), scores.shape[1]
    index, token = found.unbind(-1)
    row = part[index]
    noisy = torch.cat([_noisy(scores, keys, row[run], token[run]) for run in row_slices(len(row), 1)])
    best = noisy.new_full((num_rows,), -torch.inf).scatter_reduce_(0, index, noisy, "amax")
    wins = noisy == best[index]
    return token.new_full((num_rows,), vocab_size).scatter_reduce_(0, index[wins], token[wins], "amin")


def _noisy(scores: Tensor, keys: RowKeys, row: Tensor, token: Tensor) -> Tensor:
    return scores[row, token] + gumbel_of((keys[0][row], keys[1][row]), token)
