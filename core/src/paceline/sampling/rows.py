"""The parameters of the rows that are sampled in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from paceline.sampling.edits import AllowedIds, LogitBias, Penalties

__all__ = ["RowParams"]

Banned = tuple[int, Sequence[int] | np.ndarray]


@dataclass(slots=True)
class RowParams:
    """Parameters of R rows, on the logits' device. Columns may be shared with other steps, and are not to be written.

    Attributes:
        temperature: float32 ``[R]``; 0 = greedy, which ignores the filters.
        top_k: int64 ``[R]``; 0 = off.
        top_p: float32 ``[R]``; 1 = off.
        min_p: float32 ``[R]``; 0 = off.
        seeds: int64 ``[R]``.
        positions: int64 ``[R]``, position of the token being chosen.
        banned: ``(row, token ids)`` pairs that may not be chosen.
        all_greedy: No row has a temperature.
        any_top_k: A row with a temperature has top-k on; likewise for the next two.
        any_top_p: See above.
        any_min_p: See above.
        allowed: Rows that may only choose among some ids; a row that stands in several, among those of all.
        bias: Numbers added to logits; ``None`` = no row, likewise for the next.
        penalties: Penalties for tokens already seen.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor
    banned: list[Banned]
    all_greedy: bool
    any_top_k: bool
    any_top_p: bool
    any_min_p: bool
    allowed: Sequence[AllowedIds] = ()
    bias: LogitBias | None = None
    penalties: Penalties | None = None

    @classmethod
    def build(
        cls,
        *,
        temperature: np.ndarray,
        top_k: np.ndarray,
        top_p: np.ndarray,
        min_p: np.ndarray,
        seeds: np.ndarray,
        positions: np.ndarray,
        banned: Sequence[Banned] = (),
        allowed: Sequence[AllowedIds] = (),
        bias: LogitBias | None = None,
        penalties: Penalties | None = None,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Move host arrays ``[R]`` to the device and note which filters are in use."""
        heat = temperature.astype(np.float32)
        sampled = heat > 0
        nucleus, floor = top_p.astype(np.float32), min_p.astype(np.float32)
        return cls(
            temperature=torch.from_numpy(heat).to(device),
            top_k=torch.from_numpy(np.maximum(top_k, 0).astype(np.int64)).to(device),
            top_p=torch.from_numpy(nucleus).to(device),
            min_p=torch.from_numpy(floor).to(device),
            seeds=torch.from_numpy(seeds.astype(np.int64)).to(device),
            positions=torch.from_numpy(positions.astype(np.int64)).to(device),
            banned=_not_empty(banned),
            all_greedy=not sampled.any(),
            any_top_k=bool((sampled & (top_k > 0)).any()),
            any_top_p=bool((sampled & (nucleus < 1)).any()),
            any_min_p=bool((sampled & (floor > 0)).any()),
            allowed=allowed,
            bias=bias,
            penalties=penalties,
        )

    def at(
        self,
        positions: Tensor,
        *,
        banned: Sequence[Banned] = (),
        allowed: Sequence[AllowedIds] = (),
        bias: LogitBias | None = None,
        penalties: Penalties | None = None,
    ) -> Self:
        """The same rows for other positions int64 ``[R]``, with edits of their own. Columns are shared."""
        return type(self)(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seeds=self.seeds,
            positions=positions,
            banned=_not_empty(banned),
            all_greedy=self.all_greedy,
            any_top_k=self.any_top_k,
            any_top_p=self.any_top_p,
            any_min_p=self.any_min_p,
            allowed=allowed,
            bias=bias,
            penalties=penalties,
        )


def _not_empty(banned: Sequence[Banned]) -> list[Banned]:
    return [(row, ids) for row, ids in banned if len(ids)]
