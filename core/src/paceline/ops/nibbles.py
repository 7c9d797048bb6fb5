"""Weights rounded to 4 bits: ``scale * n + minimum`` with n from 0 to 15, for 32 inputs of an output at a time.

Scale and minimum start from the range of the 32 weights; then they and n are fitted to one another by least squares in
turns (Lloyd's method; GGML's k-quants are found so too). They are kept as bfloat16, which has the range of float32:
5 bits a weight in all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional as F

__all__ = ["GROUP", "REFINEMENTS", "Nibbles", "rounded_to_nibbles"]

GROUP = 32
REFINEMENTS = 4  # the squared error of Gaussian weights is 0.92 of the range's own after 1, 0.86 after 4, 0.85 after 10

_LARGEST = 15
_CHUNK = 65536  # weights at a time, so that the steps stay in the CPU's cache
_TINY = torch.finfo(torch.float32).tiny


class Nibbles(NamedTuple):
    """Weights ``scale * values + minimum``.

    Attributes:
        values: uint8 ``[out, groups, 32]``, 0 to 15.
        scale: bfloat16 ``[out, groups]``, above 0.
        minimum: bfloat16 ``[out, groups]``.
    """

    values: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor

    def weights(self, in_features: int) -> torch.Tensor:
        """What they stand for, float32 ``[out, in]``."""
        scale, minimum = self.scale.float()[..., None], self.minimum.float()[..., None]
        return (self.values * scale + minimum).flatten(1)[:, :in_features]


def rounded_to_nibbles(weight: torch.Tensor) -> Nibbles:
    """Weights ``[out, in]`` of any floating dtype, in groups along the input; the last group is filled up."""
    filled = F.pad(weight.float()[None], (0, -weight.shape[1] % GROUP), mode="replicate")[0]
    groups = filled.view(len(weight), -1, GROUP)
    parts = [_rounded(part) for part in groups.split(max(1, _CHUNK // filled.shape[1]))]
    return Nibbles(*map(torch.cat, zip(*parts, strict=True)))


def _rounded(groups: torch.Tensor) -> Nibbles:
    low, high = groups.aminmax(dim=-1, keepdim=True)
    values = _nearest(groups, (high - low) / _LARGEST, low)
    for _ in range(REFINEMENTS - 1):
        values = _nearest(groups, *_line(values, groups))
    scale, minimum = (fitted.bfloat16() for fitted in _line(values, groups))
    values = _nearest(groups, scale.float(), minimum.float())
    return Nibbles(values.to(torch.uint8), scale[..., 0], minimum[..., 0])


def _nearest(groups: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    return ((groups - minimum) / scale.clamp(min=_TINY)).round_().clamp_(0, _LARGEST)


def _line(values: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Slope, above 0, and offset of the least squared error."""
    means = [part.mean(dim=-1, keepdim=True) for part in (values, groups)]
    off = values - means[0]
    slope = (off * groups).sum(dim=-1, keepdim=True) / off.square().sum(dim=-1, keepdim=True).clamp(min=_TINY)
    slope = slope.clamp(min=_TINY)
    return slope, means[1] - slope * means[0]
