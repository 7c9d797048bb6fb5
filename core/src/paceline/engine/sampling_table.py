"""Sampling parameters of the admitted requests as columns, so that a step gathers them without per-row Python."""

from __future__ import annotations

import numpy as np
import torch

from paceline.engine.request import Request
from paceline.sampling.rows import RowParams

__all__ = ["SamplingTable"]


class SamplingTable:
    """One row per block-table row; a row is written at admission and read until release."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._device = device
        self._temperature = np.zeros(num_rows, dtype=np.float32)
        self._top_k = np.zeros(num_rows, dtype=np.int64)
        self._top_p = np.ones(num_rows, dtype=np.float32)
        self._min_p = np.zeros(num_rows, dtype=np.float32)
        self._seed = np.zeros(num_rows, dtype=np.int64)
        self._min_num_tokens = np.zeros(num_rows, dtype=np.int64)
        self._stop_ids: list[list[int]] = [[] for _ in range(num_rows)]

    def write(self, request: Request) -> None:
        """Take over a request's parameters into its row."""
        row, sampling = request.row, request.sampling
        self._temperature[row] = sampling.temperature
        self._top_k[row] = max(sampling.top_k, 0)
        self._top_p[row] = sampling.top_p
        self._min_p[row] = sampling.min_p
        self._seed[row] = np.uint64(sampling.seed).astype(np.int64)
        self._min_num_tokens[row] = request.num_prompt_tokens + request.params.min_tokens
        self._stop_ids[row] = sorted(request.stop_ids)

    def gather(self, rows: np.ndarray, positions: np.ndarray) -> RowParams:
        """Parameters for sampled rows; stop tokens are banned at positions that ``min_tokens`` covers.

        Args:
            rows: int64 ``[R]``, table row of each sampled row's request.
            positions: int64 ``[R]``, position of the token that each chooses.
        """
        short = np.flatnonzero(positions < self._min_num_tokens[rows])
        return RowParams.build(
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            seeds=self._seed[rows],
            positions=positions,
            banned=[(int(row), self._stop_ids[rows[row]]) for row in short],
            device=self._device,
        )
