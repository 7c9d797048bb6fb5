"""What edits the logits of the admitted requests before the temperature: masks, bad words, biases, penalties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from paceline.engine.bad_words import BadWords
from paceline.engine.mask_table import MaskTable
from paceline.engine.penalty_table import PenaltyTable
from paceline.engine.plan import offsets
from paceline.engine.request import Request
from paceline.sampling.edits import AllowedIds, LogitBias, Penalties

__all__ = ["EditTable", "Edits"]


@dataclass(slots=True)
class Edits:
    """Edits of some sampled rows, as ``RowParams`` takes them."""

    allowed: Sequence[AllowedIds] = ()
    banned: list[tuple[int, np.ndarray]] = field(default_factory=list)
    bias: LogitBias | None = None
    penalties: Penalties | None = None


class EditTable:
    """One row per block-table row. Rows of requests without edits cost nothing, and no memory is held for them."""

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device, masks: MaskTable) -> None:
        self._device = device
        self._constrained = masks
        self._penalties = PenaltyTable(num_rows, vocab_size, device)
        self._masks_shape = (num_rows, vocab_size)
        self._masks: torch.Tensor | None = None
        self._biases: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._bad_words: dict[int, tuple[BadWords, Request]] = {}
        self._is_masked = np.zeros(num_rows, dtype=bool)
        self._is_edited = np.zeros(num_rows, dtype=bool)
        self._reads_drafts = np.zeros(num_rows, dtype=bool)

    def write(self, request: Request) -> bool:
        """Take over a request's edits into its row, and tell whether there are any."""
        row, params = request.row, request.params
        self._penalties.write(request)
        self._constrained.write(request)
        self._write_mask(row, params.allowed_token_ids)
        self._write_bias(row, params.logit_bias)
        self._bad_words.pop(row, None)
        if request.bad_word_ids:
            self._bad_words[row] = (BadWords(request.bad_word_ids), request)
        self._reads_drafts[row] = params.has_penalties or row in self._bad_words or row in self._constrained
        self._is_edited[row] = self._reads_drafts[row] or self._is_masked[row] or row in self._biases
        return bool(self._is_edited[row])

    def _write_mask(self, row: int, allowed: list[int] | None) -> None:
        self._is_masked[row] = allowed is not None
        if allowed is None:
            return
        if self._masks is None:
            self._masks = torch.zeros(self._masks_shape, dtype=torch.bool, device=self._device)
        self._masks[row].zero_()[torch.tensor(allowed, device=self._device)] = True

    def _write_bias(self, row: int, bias: Mapping[int, float]) -> None:
        self._biases.pop(row, None)
        if bias:
            self._biases[row] = (np.array(list(bias)), np.array(list(bias.values()), dtype=np.float32))

    def reads_drafts(self, rows: np.ndarray) -> bool:
        """Whether what was drafted before them matters for any of these table rows (int64 ``[R]``)."""
        return bool(self._reads_drafts[rows].any())

    def gather(self, rows: np.ndarray, positions: np.ndarray, drafted: np.ndarray) -> Edits:
        """Edits at sampled rows.

        Args:
            rows: int64 ``[R]``, table row of each one's request.
            positions: int64 ``[R]``, position of the token that each chooses.
            drafted: int64 ``[R, D]``, tokens drafted before each, padded with -1; a row whose request has penalties,
                bad words or constraints needs them.
        """
        if not self._is_edited[rows].any():
            return Edits()
        return Edits(
            allowed=[*self._allowed(rows), *self._constrained.gather(rows, drafted)],
            banned=self._banned(rows, positions, drafted),
            bias=self._bias(rows),
            penalties=self._penalties.gather(rows, drafted),
        )

    def _allowed(self, rows: np.ndarray) -> list[AllowedIds]:
        used = np.flatnonzero(self._is_masked[rows])
        if self._masks is None or not len(used):
            return []
        return [AllowedIds(self._tensor(used), self._masks, self._tensor(rows[used]))]

    def _bias(self, rows: np.ndarray) -> LogitBias | None:
        used = np.flatnonzero(np.isin(rows, list(self._biases)))
        if not len(used):
            return None
        requests, owner = np.unique(rows[used], return_inverse=True)
        ids, values = zip(*(self._biases[row] for row in requests.tolist()), strict=True)
        sizes = np.array([len(own) for own in ids])
        counts = sizes[owner]
        picked = np.repeat((np.cumsum(sizes) - sizes)[owner], counts) + offsets(counts)
        return LogitBias(
            rows=self._tensor(np.repeat(used, counts)),
            ids=self._tensor(np.concatenate(ids)[picked]),
            values=self._tensor(np.concatenate(values)[picked]),
        )

    def _banned(self, rows: np.ndarray, positions: np.ndarray, drafted: np.ndarray) -> list[tuple[int, np.ndarray]]:
        banned: list[tuple[int, np.ndarray]] = []
        for table_row in set(rows.tolist()) & self._bad_words.keys():
            words, request = self._bad_words[table_row]
            own = np.flatnonzero(rows == table_row)
            num_drafted = np.clip(positions[own] - request.num_tokens, 0, drafted.shape[1])
            output = request.tokens[request.num_prompt_tokens :]
            banned += zip(own.tolist(), words.completions(output, drafted[own], num_drafted), strict=True)
        return banned

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)
