"""Elementary functions whose bits depend on their argument alone.

A library's ``log`` or ``exp`` may take another code path for the end of a tensor, for another length or for another
number of threads, and differ there in the last bit. These are made of correctly rounded operations only (one tensor
operation each, so that none is fused), which gives the same bits everywhere.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["MASS_BITS", "exp_mass", "log"]

MASS_BITS = 40
_LN2 = math.log(2.0)
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_EXPONENT_MASK = -(1 << 52)
_ARTANH_TERMS = 7
_EXP_TERMS = 10
_NO_MASS = -40.0


def log(x: Tensor) -> Tensor:
    """Natural logarithm of positive normal float64 ``[...]``, within a few ulps, also close to 1.

    With ``x = 2**k * m`` and ``m`` around 1: ``log x = k ln 2 + 2 artanh((m - 1) / (m + 1))``.
    """
    bits = x.view(torch.int64)
    offset = bits - _SQRT_HALF_BITS
    mantissa = (bits - (offset & _EXPONENT_MASK)).view(torch.float64)
    exponent = (offset >> 52).to(torch.float64)
    ratio = mantissa.sub(1.0).div_(mantissa.add(1.0))
    square = ratio * ratio
    series = torch.full_like(x, 1.0 / (2 * _ARTANH_TERMS + 1))
    for term in range(_ARTANH_TERMS - 1, -1, -1):
        series.mul_(square).add_(1.0 / (2 * term + 1))
    return series.mul_(ratio).mul_(2.0).add_(exponent.mul_(_LN2))


def exp_mass(z: Tensor) -> Tensor:
    """``exp(z)`` in units of ``2**-MASS_BITS`` as int64 ``[...]``, for float ``z <= 0``; -inf gives 0.

    Sums of integers do not depend on their order, so a total over a row is the same however it is taken.
    """
    z = z.to(torch.float64).clamp_(min=_NO_MASS)
    power = z.mul(1.0 / _LN2).round_()
    rest = z.sub_(power.mul(_LN2_HIGH)).sub_(power.mul(_LN2_LOW))
    series = torch.full_like(rest, 1.0 / math.factorial(_EXP_TERMS))
    for term in range(_EXP_TERMS - 1, -1, -1):
        series.mul_(rest).add_(1.0 / math.factorial(term))
    scale = power.to(torch.int64).add_(1023 + MASS_BITS).bitwise_left_shift_(52).view(torch.float64)
    return series.mul_(scale).to(torch.int64)
