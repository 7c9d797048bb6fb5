"""Penalties of the admitted requests: how often each has seen each token, on the device."""

from __future__ import annotations

import numpy as np
import torch

from paceline.engine.request import Request
from paceline.sampling.edits import PROMPT_BIT, Penalties

__all__ = ["PenaltyTable"]


class PenaltyTable:
    """Counts ``[table rows, vocab]``, allocated when the first request with penalties comes.

    Counts follow the requests' tokens, which only grow: a row is filled when its request is admitted and catches up
    before it is read. Until then it may hold what an earlier request left.
    """

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._shape = (num_rows, vocab_size)
        self._device = device
        self._counts: torch.Tensor | None = None
        self._requests: dict[int, Request] = {}
        self._num_counted = np.zeros(num_rows, dtype=np.int64)
        self._strengths = np.zeros((3, num_rows), dtype=np.float32)

    def write(self, request: Request) -> None:
        """Begin a request's row."""
        row, params = request.row, request.params
        self._requests.pop(row, None)
        if not params.has_penalties:
            return
        self._requests[row] = request
        self._strengths[:, row] = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
        if self._counts is None:
            self._counts = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
        counts = self._counts[row].zero_()
        counts[self._tensor(request.tokens[: request.num_prompt_tokens])] = PROMPT_BIT
        self._num_counted[row] = request.num_prompt_tokens

    def gather(self, rows: np.ndarray, drafted: np.ndarray) -> Penalties | None:
        """Penalties at sampled rows; ``None`` if none of them has any.

        Args:
            rows: int64 ``[R]``, table row of each one's request.
            drafted: int64 ``[R, D]``, tokens drafted before each, padded with -1.
        """
        used = np.flatnonzero(np.isin(rows, list(self._requests)))
        if self._counts is None or not len(used):
            return None
        for row in np.unique(rows[used]).tolist():
            self._catch_up(self._counts[row], self._requests[row])
        repetition, presence, frequency = self._tensor(self._strengths[:, rows[used]])
        return Penalties(
            rows=self._tensor(used),
            counts=self._counts,
            index=self._tensor(rows[used]),
            drafted=self._tensor(drafted[used]),
            repetition=repetition,
            presence=presence,
            frequency=frequency,
        )

    def _catch_up(self, counts: torch.Tensor, request: Request) -> None:
        tokens = request.tokens[self._num_counted[request.row] :]
        if len(tokens):
            ids = self._tensor(tokens)
            counts.scatter_add_(0, ids, torch.ones_like(ids, dtype=counts.dtype))
            self._num_counted[request.row] = request.num_tokens

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.tensor(values, device=self._device)
