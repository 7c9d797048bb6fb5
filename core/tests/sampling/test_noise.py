from __future__ import annotations

import math

import pytest
import torch

from paceline.sampling.noise import (
    derive_seed,
    gumbel,
    gumbel_estimate,
    gumbel_of,
    noise_bits,
    row_keys,
    to_gumbel,
)

M32 = (1 << 32) - 1


def lowbias32(x: int) -> int:
    x = (x ^ (x >> 16)) * 0x7FEB352D & M32
    x = (x ^ (x >> 15)) * 0x846CA68B & M32
    return x ^ (x >> 16)


def reference_bits(seed: int, position: int, token: int) -> int:
    lanes = []
    for lane in (0x243F6A88, 0x13198A2E):
        for word in (seed & M32, seed >> 32, position & M32, position >> 32):
            lane = lowbias32(((lane ^ word) + 0x7F4A7C15) & M32)
        lanes.append(lane)
    x = lowbias32((token + 0x03707344) & M32) ^ lanes[0]
    x = ((x ^ (x >> 16)) * 0x7FEB352D + lanes[1]) & M32
    x = (x ^ (x >> 15)) * 0x846CA68B & M32
    return x ^ (x >> 16)


GOLDEN = [
    (0, 0, 0, 0x38999EF0, 1.3868345),
    (0, 0, 1, 0x210DF777, 1.97868907),
    (0, 1, 0, 0xABBA2133, -0.105365574),
    (1, 0, 0, 0x8AEF336D, 0.245334461),
    (42, 7, 49151, 0x5CA12FBB, 0.800381362),
    (9223372036854775807, 1048575, 128255, 0xC33F617D, -0.363510907),
    (655884233731895160, 4294967296, 2147483647, 0x995BADE6, 0.0899997354),
]


@pytest.mark.parametrize(("seed", "position", "token", "bits", "noise"), GOLDEN)
def test_golden_vectors(seed, position, token, bits, noise):
    arguments = torch.tensor([seed]), torch.tensor([position]), torch.tensor([token])
    assert reference_bits(seed, position, token) == bits
    assert noise_bits(*arguments).tolist() == [[bits]]
    assert gumbel(*arguments).item() == torch.tensor(noise).item()


def test_integers_equal_the_reference_everywhere():
    seeds, positions = torch.tensor([0, 5, 2**62 + 12345]), torch.tensor([0, 70_000, 2**33 + 1])
    ids = torch.randint(0, 2**31, (3, 50))
    expected = [
        [reference_bits(int(s), int(p), int(t)) for t in row] for s, p, row in zip(seeds, positions, ids, strict=True)
    ]
    assert noise_bits(seeds, positions, ids).tolist() == expected


def test_ids_may_be_shared_or_given_per_row(same_bits):
    seeds, positions, ids = torch.tensor([1, 2]), torch.tensor([3, 4]), torch.arange(9)
    assert torch.equal(noise_bits(seeds, positions, ids), noise_bits(seeds, positions, ids.expand(2, 9)))
    assert same_bits(gumbel(seeds, positions, ids), gumbel(seeds, positions, ids.expand(2, 9)))


def test_noise_is_finite_for_every_integer_and_right_at_the_ends():
    numbers = [0, 1, 2, 2**31 - 1, 2**31, 2**32 - 3, 2**32 - 2, 2**32 - 1, *range(2**32 - 1, 2**32 - 2**12, -7)]
    noise = to_gumbel(torch.tensor(numbers, dtype=torch.float64))
    assert noise.dtype == torch.float32 and noise.isfinite().all()
    for number, value in zip(numbers[:8], noise[:8].tolist(), strict=True):
        w = (number + 0.5) / 2**32
        exact = -math.log(-math.log1p(-w)) if w < 0.5 else -math.log(-math.log((2**32 - number - 0.5) / 2**32))
        assert value == pytest.approx(exact, rel=2e-7, abs=1e-9)
    assert (to_gumbel(torch.arange(0.0, 2**32, 2**13 + 1, dtype=torch.float64)).diff() <= 0).all()


def test_the_estimate_is_close_enough_for_its_margin():
    keys = row_keys(torch.tensor([11]), torch.tensor([0]))
    ids = torch.arange(2_000_000)
    assert (gumbel_estimate(keys, ids) - gumbel_of(keys, ids)).abs().max() < 0.01
    worst = torch.tensor([2.0**32 - 1, 2.0**32 - 100, 0.0], dtype=torch.float64)
    w = ((worst + 0.5) * 2.0**-32).float().clamp(max=1 - 2.0**-24)
    assert (-(-torch.log1p(-w)).log() - to_gumbel(worst)).abs().max() < 0.4


@pytest.mark.parametrize("width", [*range(1, 20), 63, 64, 65, 127, 4097])
def test_each_entry_depends_on_its_row_and_id_alone(width, num_threads, same_bits):
    seeds, positions, ids = torch.arange(5) * 977, torch.arange(5) + 100, torch.arange(5000)
    whole = gumbel(seeds, positions, ids)
    for start in (0, 1, 7):
        part = ids[start : start + width]
        for count in (1, 2, 3, 5):
            rows = slice(5 - count, 5)
            few = gumbel(seeds[rows], positions[rows], part)
            assert same_bits(few, whole[rows, start : start + width])


def test_many_rows_equal_single_rows(num_threads, same_bits):
    seeds, positions, ids = torch.arange(7), torch.arange(7), torch.arange(49_152)
    whole = gumbel(seeds, positions, ids)
    for row in range(7):
        assert same_bits(gumbel(seeds[row : row + 1], positions[row : row + 1], ids), whole[row : row + 1])


def _chi_square(cells: torch.Tensor, num_cells: int) -> float:
    counts = torch.bincount(cells.flatten(), minlength=num_cells).double()
    expected = cells.numel() / num_cells
    return float(((counts - expected) ** 2 / expected).sum())


def _limit(df: int) -> float:
    """Chi-square quantile six standard deviations out (Wilson-Hilferty)."""
    return df * (1 - 2 / (9 * df) + 6 * math.sqrt(2 / (9 * df))) ** 3


def _grids():
    wide = noise_bits(torch.tensor([3]), torch.tensor([17]), torch.arange(1 << 18))
    deep = noise_bits(torch.full((1 << 18,), 3), torch.arange(1 << 18), torch.tensor([42])).T
    seeded = noise_bits(torch.arange(1 << 18), torch.full((1 << 18,), 9), torch.tensor([42])).T
    return {"ids": wide, "positions": deep, "seeds": seeded}


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_bytes_are_uniform_and_neighbours_independent(shift):
    for bits in _grids().values():
        byte = (bits >> shift) & 0xFF
        assert _chi_square(byte, 256) < _limit(255)
        nibble = byte >> 4
        for lag in (1, 2, 256):
            assert _chi_square(nibble[:, lag:] * 16 + nibble[:, :-lag], 256) < _limit(255)


def test_rows_of_neighbouring_keys_are_independent():
    seeds = torch.tensor([1, 1, 2, 2, 1 + 2**32, 1 + 2**32])
    positions = torch.tensor([5, 6, 5, 6, 5, 5 + 2**32])
    bits = noise_bits(seeds, positions, torch.arange(1 << 16)) >> 28
    for left in range(6):
        for right in range(left):
            assert _chi_square(bits[left] * 16 + bits[right], 256) < _limit(255)


def test_noise_has_the_moments_of_a_gumbel():
    noise = gumbel(torch.arange(20), torch.arange(20), torch.arange(50_000)).double()
    assert abs(noise.mean() - 0.5772157) < 0.006
    assert abs(noise.var() - math.pi**2 / 6) < 0.02


def test_derived_seeds_differ_and_stay_in_range():
    seeds = {derive_seed(seed, index) for seed in range(100) for index in range(100)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(0, 0) == 6017775124710473527
    assert derive_seed(2**63 - 1, 1) != derive_seed(2**63 - 1, 2)
    assert sum(seed >> 62 for seed in seeds) == pytest.approx(5000, abs=300)
