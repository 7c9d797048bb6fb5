"""Counter-based Gumbel noise: a pure function of (seed, position, token id).

The integers come from *paceline-mix32*: token ids and row keys go through lowbias32 (C. Wellons, hash-prospector), in
32-bit arithmetic that wraps, so that other devices give the same integers. The golden vectors in the tests fix it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.sampling.exact_math import log

__all__ = [
    "RowKeys",
    "derive_seed",
    "gumbel",
    "gumbel_estimate",
    "gumbel_of",
    "noise_bits",
    "row_keys",
    "row_slices",
    "to_gumbel",
]

RowKeys = tuple[Tensor, Tensor]

CHUNK_NUMEL = 1 << 17
_FIRST_LANE, _SECOND_LANE, _ID_LANE = 0x243F6A88, 0x13198A2E, 0x03707344
_GOLDEN_64 = 0x9E3779B97F4A7C15
_MASK_64 = (1 << 64) - 1


def _int32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


_MULTIPLIER_1, _MULTIPLIER_2 = _int32(0x7FEB352D), _int32(0x846CA68B)


def _xor_shift(x: Tensor, shift: int) -> Tensor:
    return x.bitwise_xor_((x >> shift).bitwise_and_((1 << (32 - shift)) - 1))


def _lowbias32_(x: Tensor) -> Tensor:
    x = _xor_shift(x, 16).mul_(_MULTIPLIER_1)
    x = _xor_shift(x, 15).mul_(_MULTIPLIER_2)
    return _xor_shift(x, 16)


def _words(value: Tensor) -> tuple[Tensor, Tensor]:
    low, high = value.contiguous().view(torch.int32).view(len(value), 2).unbind(-1)
    return low, high


def _lane(seeds: Tensor, positions: Tensor, start: int) -> Tensor:
    state = torch.full_like(seeds, _int32(start), dtype=torch.int32)
    for word in (*_words(seeds), *_words(positions)):
        state = _lowbias32_((state ^ word).add_(_int32(_GOLDEN_64)))
    return state


def row_keys(seeds: Tensor, positions: Tensor) -> RowKeys:
    """Two int32 ``[R]`` lanes, the 64-bit key of each row's noise, from int64 ``[R]`` seeds and positions."""
    return _lane(seeds, positions, _FIRST_LANE), _lane(seeds, positions, _SECOND_LANE)


def _mix(keys: RowKeys, ids: Tensor) -> Tensor:
    first, second = keys
    x = _lowbias32_(ids.to(torch.int32) + _int32(_ID_LANE)) ^ first
    x = _xor_shift(x, 16).mul_(_MULTIPLIER_1).add_(second)
    x = _xor_shift(x, 15).mul_(_MULTIPLIER_2)
    return _xor_shift(x, 16)


def _numbers(keys: RowKeys, ids: Tensor) -> Tensor:
    return (_mix(keys, ids) ^ _int32(1 << 31)).to(torch.float64).add_(2.0**31)


def to_gumbel(numbers: Tensor) -> Tensor:
    """Noise float32 of integers in ``[0, 2**32)``, given as float64 and overwritten. Finite: from -3.14 to 22.88.

    ``1 - w`` is exact in float64 for each of them, and never 0 or 1.
    """
    one_minus_w = numbers.neg_().add_(2.0**32 - 0.5).mul_(2.0**-32)
    return log(log(one_minus_w).neg_()).neg_().to(torch.float32)


def gumbel_of(keys: RowKeys, ids: Tensor) -> Tensor:
    """Noise float32 of token ids int64, elementwise; keys and ids broadcast."""
    return to_gumbel(_numbers(keys, ids))


def gumbel_estimate(keys: RowKeys, ids: Tensor) -> Tensor:
    """Like ``gumbel_of``, within 0.4, by the library's logarithms: cheaper, and its bits are not promised."""
    w = _numbers(keys, ids).add_(0.5).mul_(2.0**-32).to(torch.float32).clamp_(max=1.0 - 2.0**-24)
    return w.neg_().log1p_().neg_().log_().neg_()


def row_slices(num_rows: int, width: int) -> list[slice]:
    """Cut rows into runs that fit a core's cache; elementwise work does not notice."""
    step = max(1, CHUNK_NUMEL // max(width, 1))
    return [slice(start, start + step) for start in range(0, num_rows, step)]


def noise_bits(seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """The integers behind the noise.

    Args:
        seeds: int64 ``[R]``.
        positions: int64 ``[R]``, position of the token being chosen.
        ids: int64 ``[N]`` or ``[R, N]``, token ids below ``2**32``.

    Returns:
        int64 ``[R, N]`` in ``[0, 2**32)``.
    """
    first, second = row_keys(seeds, positions)
    return _mix((first[:, None], second[:, None]), ids).to(torch.int64).bitwise_and_(0xFFFFFFFF)


def gumbel(seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Gumbel noise of every row and id; arguments as for ``noise_bits``.

    With ``n`` the integer of ``noise_bits``: ``w = (n + 1/2) * 2**-32`` and ``g = -log(-log1p(-w))``, a float32 of
    which every bit depends on (seed, position, id) alone.

    Returns:
        float32 ``[R, N]``, finite.
    """
    first, second = row_keys(seeds, positions)
    out = torch.empty(seeds.shape[0], ids.shape[-1], dtype=torch.float32, device=ids.device)
    for rows in row_slices(*out.shape):
        out[rows] = gumbel_of((first[rows, None], second[rows, None]), ids if ids.ndim == 1 else ids[rows])
    return out


def derive_seed(seed: int, index: int) -> int:
    """A seed in ``[0, 2**63)`` for the ``index``-th stream under ``seed`` (splitmix64; Steele, Lea, Flood 2014)."""
    x = (_splitmix64(seed) + index * _GOLDEN_64) & _MASK_64
    return _splitmix64(x) >> 1


def _splitmix64(x: int) -> int:
    x = (x + _GOLDEN_64) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)
