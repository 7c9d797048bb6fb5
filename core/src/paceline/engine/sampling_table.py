"""Sampling parameters of the admitted requests as columns, so that a step gathers them without per-row Python."""

from __future__ import annotations

import numpy as np
import torch

from paceline.engine.edit_table import EditTable
from paceline.engine.mask_table import MaskTable
from paceline.engine.request import Request
from paceline.sampling.rows import RowParams

__all__ = ["SamplingTable"]


class SamplingTable:
    """One row per block-table row; a row is written at admission and read until release.

    Args:
        num_rows: Most requests admitted.
        vocab_size: Ids that may be chosen.
        device: Where the logits are.
        masks: Masks of the constrained requests.
    """

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device, masks: MaskTable) -> None:
        self._device = device
        self._edits = EditTable(num_rows, vocab_size, device, masks)
        self._temperature = np.zeros(num_rows, dtype=np.float32)
        self._top_k = np.zeros(num_rows, dtype=np.int64)
        self._top_p = np.ones(num_rows, dtype=np.float32)
        self._min_p = np.zeros(num_rows, dtype=np.float32)
        self._seed = np.zeros(num_rows, dtype=np.int64)
        self._min_num_tokens = np.zeros(num_rows, dtype=np.int64)
        self._stop_ids: list[list[int]] = [[] for _ in range(num_rows)]
        self._edited_rows: set[int] = set()
        self._kept: RowParams | None = None
        self._kept_for = b""

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
        self._kept = None
        if self._edits.write(request) or request.params.min_tokens:
            self._edited_rows.add(row)
        else:
            self._edited_rows.discard(row)

    def reads_drafts(self, rows: np.ndarray) -> bool:
        """Whether any of these table rows (int64 ``[R]``) looks at what was drafted before it."""
        return self._edits.reads_drafts(rows)

    def gather(self, rows: np.ndarray, positions: np.ndarray, drafted: np.ndarray | None = None) -> RowParams:
        """Parameters for sampled rows; stop tokens are banned at positions that ``min_tokens`` covers.

        Args:
            rows: int64 ``[R]``, table row of each sampled row's request.
            positions: int64 ``[R]``, position of the token that each chooses.
            drafted: int64 ``[R, D]``, tokens drafted before each, padded with -1; needed where ``reads_drafts``.
        """
        fixed, device_positions = self._fixed(rows), torch.from_numpy(positions.astype(np.int64)).to(self._device)
        if not self._edited_rows:
            return fixed.at(device_positions)
        if drafted is None:
            drafted = np.empty((len(rows), 0), dtype=np.int64)
        edits = self._edits.gather(rows, positions, drafted)
        return fixed.at(
            device_positions,
            banned=[*self._banned_ends(rows, positions), *edits.banned],
            allowed=edits.allowed,
            bias=edits.bias,
            penalties=edits.penalties,
        )

    def _banned_ends(self, rows: np.ndarray, positions: np.ndarray) -> list[tuple[int, list[int]]]:
        short = np.flatnonzero(positions < self._min_num_tokens[rows])
        return [(int(row), self._stop_ids[rows[row]]) for row in short]

    def _fixed(self, rows: np.ndarray) -> RowParams:
        """What goes by the rows alone. It is kept, since a decoding step has those of the one before."""
        key = rows.tobytes()
        if self._kept is None or key != self._kept_for:
            self._kept_for = key
            self._kept = RowParams.build(
                temperature=self._temperature[rows],
                top_k=self._top_k[rows],
                top_p=self._top_p[rows],
                min_p=self._min_p[rows],
                seeds=self._seed[rows],
                positions=np.zeros_like(rows),  # each step has its own
                device=self._device,
            )
        return self._kept
