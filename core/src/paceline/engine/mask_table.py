"""Masks of the constrained requests, kept while a request's output stays as it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from paceline.engine.constraints import Constraints
from paceline.engine.request import Request
from paceline.sampling.edits import AllowedIds

__all__ = ["MaskTable"]

_Path = tuple[int, ...]


@dataclass(slots=True)
class _Kept:
    """A request's masks after its first ``num_tokens`` tokens, by what was drafted after those."""

    request: Request
    num_tokens: int = 0
    masks: dict[_Path, np.ndarray] = field(default_factory=dict)


class MaskTable:
    """Asks the constraints once for each row of a step, however often the row is looked at."""

    def __init__(self, constraints: Constraints, vocab_size: int, device: torch.device) -> None:
        self._constraints = constraints
        self._vocab_size = vocab_size
        self._device = device
        self._kept: dict[int, _Kept] = {}

    def write(self, request: Request) -> None:
        """Begin a request's row."""
        self._kept.pop(request.row, None)
        if request.constraints:
            self._kept[request.row] = _Kept(request)

    def __contains__(self, table_row: int) -> bool:
        return table_row in self._kept

    def gather(self, rows: np.ndarray, drafted: np.ndarray) -> list[AllowedIds]:
        """What may be chosen at sampled rows, of which only those of constrained requests are bound.

        Args:
            rows: int64 ``[R]``, table row of each one's request.
            drafted: int64 ``[R, D]``, tokens drafted before each, padded with -1.
        """
        used = np.flatnonzero(np.isin(rows, list(self._kept)))
        if not len(used):
            return []
        packed = torch.from_numpy(self._masks(rows[used].tolist(), drafted[used])).to(self._device)
        bits = packed[..., None].bitwise_right_shift(torch.arange(8, dtype=torch.uint8, device=self._device)) & 1
        masks = bits.flatten(1)[:, : self._vocab_size].bool()
        return [AllowedIds(self._tensor(used), masks, self._tensor(np.arange(len(used))))]

    def permits(self, table_row: int, before: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Whether tokens may follow what was drafted before them, for one constrained request.

        Args:
            table_row: Table row of the request.
            before: int64 ``[nodes, D]``, padded with -1.
            tokens: int64 ``[nodes]``.

        Returns:
            bool ``[nodes]``.
        """
        masks = self._masks([table_row] * len(tokens), before)
        return (masks[np.arange(len(tokens)), tokens // 8] >> (tokens % 8).astype(np.uint8) & 1).astype(bool)

    def _masks(self, rows: list[int], drafted: np.ndarray) -> np.ndarray:
        """uint8 ``[rows, num_mask_bytes]`` of constrained requests."""
        paths = [tuple(path[path >= 0].tolist()) for path in drafted]
        self._forget_grown(rows)
        wanted = dict.fromkeys(zip(rows, paths, strict=True))
        missing = sorted(key for key in wanted if key[1] not in self._kept[key[0]].masks)
        if missing:
            answers = self._constraints.masks([(self._kept[row].request, path) for row, path in missing])
            for (row, path), mask in zip(missing, answers, strict=True):
                self._kept[row].masks[path] = mask
        return np.stack([self._kept[row].masks[path] for row, path in zip(rows, paths, strict=True)])

    def _forget_grown(self, rows: Iterable[int]) -> None:
        for kept in (self._kept[row] for row in set(rows)):
            if kept.num_tokens != kept.request.num_tokens:
                kept.masks.clear()
                kept.num_tokens = kept.request.num_tokens

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)
