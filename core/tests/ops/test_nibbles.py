"""Weights rounded to 4 bits."""

from __future__ import annotations

import pytest
import torch

from paceline.native.library import pack_nibbles
from paceline.ops.nibbles import rounded_to_nibbles


def range_rounded(weight):
    """The plain way: the range of each group in 15 equal steps."""
    groups = weight.view(len(weight), -1, 32)
    low, high = groups.aminmax(dim=-1, keepdim=True)
    step = (high - low) / 15
    return (((groups - low) / step).round() * step + low).view_as(weight)


def squared_error(weight, other):
    return float((weight - other).square().mean())


def test_weights_of_sixteen_levels_are_kept():
    levels = torch.randint(0, 16, (9, 3, 32)).float()
    levels[..., 0], levels[..., 1] = 0, 15
    weight = (levels * 0.125 - 1.0).flatten(1)
    assert torch.equal(rounded_to_nibbles(weight).weights(96), weight)


def test_the_error_is_below_that_of_rounding_over_the_range():
    weight = torch.randn(200, 256, generator=torch.Generator().manual_seed(0))
    found = rounded_to_nibbles(weight).weights(256)
    assert squared_error(weight, found) < 0.87 * squared_error(weight, range_rounded(weight))


@pytest.mark.parametrize("size", [1, 31, 33, 63, 100])
def test_the_last_group_is_filled_without_harm(size):
    """Far from zero, with which a range would be wider."""
    weight = torch.randn(60, size, generator=torch.Generator().manual_seed(size)) + 5
    nibbles = rounded_to_nibbles(weight)
    assert nibbles.values.shape == (60, -(-size // 32), 32)
    start = (size - 1) // 32 * 32
    assert squared_error(weight[:, start:], nibbles.weights(size)[:, start:]) < 0.01


@pytest.mark.parametrize("value", [0.0, -3.0, 1e-30, 1e30])
def test_equal_weights_are_kept_as_near_as_bfloat16_has_them(value):
    found = rounded_to_nibbles(torch.full((2, 64), value)).weights(64)
    torch.testing.assert_close(found, torch.full((2, 64), value), rtol=2**-8, atol=0)


@pytest.mark.parametrize("factor", [1e-12, 1e12])
def test_any_magnitude_is_rounded_as_well(factor):
    weight = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    found, others = rounded_to_nibbles(weight * factor).weights(64) / factor, rounded_to_nibbles(weight).weights(64)
    assert squared_error(weight, found) == pytest.approx(squared_error(weight, others), rel=0.03)


def test_a_row_is_rounded_alone():
    """Also across the parts that are worked on at a time."""
    weight = torch.randn(1500, 96)
    together = rounded_to_nibbles(weight).weights(96)
    assert torch.equal(torch.cat([rounded_to_nibbles(row[None]).weights(96) for row in weight[::100]]), together[::100])


def test_packed_words_are_as_documented():
    values = torch.zeros(49, 2, 32, dtype=torch.uint8)
    values[3, 1, 8:16] = torch.tensor([1, 2, 3, 4, 5, 6, 7, 15])
    scale, minimum = torch.full((49, 2), 1.0).bfloat16(), torch.full((49, 2), -2.0).bfloat16()
    packed = pack_nibbles(values, scale, minimum)
    assert packed.shape == (2, 2, 5, 48) and packed.is_contiguous()
    assert packed[0, 1, 1, 3].item() & 0xFFFFFFFF == 0xF7654321
    assert packed[0, 0, 4, 0].item() & 0xFFFFFFFF == 0x3F80C000
    assert not packed[1, :, :, 1:].any()
