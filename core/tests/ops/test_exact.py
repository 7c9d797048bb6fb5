from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paceline.ops.exact import ExactLinear, NumericsError, agreeing_row_counts, cut_rows, exact_elementwise, row_tiles

SHAPES = [(64, 64), (64, 192), (576, 576), (576, 1536), (1536, 576), (48, 80), (50, 33), (64, 512), (64, 6), (64, 1)]


def exact_of(linear):
    return ExactLinear(linear.weight.detach().t(), linear.bias.detach(), row_tiles(*linear.weight.t().shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_rows_do_not_depend_on_the_others(threads, shape):
    torch.manual_seed(0)
    linear = nn.Linear(*shape)
    exact_linear = exact_of(linear)
    x = torch.randn(150, shape[0])
    alone = torch.cat([exact_linear(row[None]) for row in x])
    for num_rows in [*range(1, 20), 31, 33, 63, 65, 100, 150]:
        start = num_rows % 7 if num_rows < 140 else 0
        assert torch.equal(exact_linear(x[start : start + num_rows]), alone[start : start + num_rows])
    torch.testing.assert_close(alone, linear(x), atol=1e-5, rtol=1e-5)


def test_linear_keeps_leading_dimensions_and_views():
    linear = nn.Linear(8, 5)
    exact_linear = exact_of(linear)
    x = torch.randn(2, 3, 16)[..., ::2]
    out = exact_linear(x)
    assert out.shape == (2, 3, 5) and exact_linear(x[:, :0]).shape == (2, 0, 5)
    torch.testing.assert_close(out, linear(x))
    assert not any(p.requires_grad for p in exact_linear.parameters())


def test_plain_linear_is_not_exact_or_this_file_proves_nothing():
    torch.manual_seed(0)
    linear = nn.Linear(576, 576, bias=False).requires_grad_(False)
    x = torch.randn(64, 576)
    assert any(not torch.equal(linear(x[:n])[:1], linear(x[:1])) for n in range(2, 65))


@pytest.mark.parametrize(
    ("num_rows", "tiles", "pieces"),
    [
        (1, (4, 8, 16), [4]),
        (13, (4, 8, 16), [16]),
        (16, (4, 8, 16), [16]),
        (37, (4, 8, 16, 32, 64), [32, 8]),
        (64, (4, 8, 16, 32, 64), [64]),
        (130, (4, 8, 16, 32, 64), [64, 64, 4]),
        (11, (4, 8), [8, 4]),
        (20, (8,), [8, 8, 8]),
        (20, (64,), [64]),
        (0, (4,), []),
    ],
)
def test_rows_are_cut_into_allowed_tiles(num_rows, tiles, pieces):
    assert list(cut_rows(num_rows, tiles)) == pieces


def shifted(counts):
    """A kernel whose results are off by one for the given row counts."""
    return lambda rows: rows * 2 + (len(rows) in counts)


@pytest.mark.parametrize(
    ("kernel", "counts"),
    [
        (shifted(()), (2, 4, 8, 16, 32, 64)),
        (shifted((2, 64)), (4, 8, 16, 32)),
        (shifted((16,)), (16,)),
        (lambda rows: rows + (len(rows) > 8) * torch.arange(len(rows))[:, None], (2, 4, 8)),
        (lambda rows: rows + (len(rows) == 4) * (torch.arange(len(rows)) == 3)[:, None], (2, 8, 16, 32, 64)),
        (lambda rows: rows + (len(rows) == 8 and not rows[1:].any()), (2, 4, 16, 32, 64)),
        (lambda rows: rows + (len(rows) == 16) * rows[1], (2, 4, 8, 32, 64)),
    ],
)
def test_self_test_picks_the_counts_that_agree(kernel, counts):
    assert agreeing_row_counts(kernel, torch.randn(64, 3), "matrix 3 x 3") == counts


def test_self_test_refuses_kernels_without_any():
    with pytest.raises(NumericsError) as caught:
        agreeing_row_counts(lambda rows: rows + rows.sum(), torch.randn(64, 3), "matrix 3 x 7")
    text = str(caught.value)
    assert text.startswith("PACELINE-E320: exact numerics: matrix 3 x 7 in float32") and "torch threads" in text
    assert "OMP_NUM_THREADS=1" in text and 'numerics="fast"' in text


@pytest.mark.parametrize(
    "function",
    [F.silu, F.gelu, lambda x: F.gelu(x, approximate="tanh"), torch.sigmoid, torch.tanh, torch.exp, F.softplus],
)
def test_elementwise_does_not_depend_on_the_shape(threads, function):
    torch.manual_seed(0)
    x = torch.randn(200_000) * 3
    expected = torch.cat([exact_elementwise(function, part) for part in x.split(128)])
    for count in [*range(1, 130), 1001, 16_383, 16_385, 98_400, 199_995]:
        for start in (0, 5):
            assert torch.equal(exact_elementwise(function, x[start : start + count]), expected[start : start + count])
    strided = exact_elementwise(function, x[:600].view(3, 200)[:, :50])
    assert torch.equal(strided, expected[:600].view(3, 200)[:, :50])
    assert exact_elementwise(function, x[:0]).shape == (0,)


def test_plain_silu_is_not_exact_or_the_wrapper_is_idle():
    torch.manual_seed(0)
    x = torch.randn(64 * 64)
    assert any(not torch.equal(F.silu(x[:n]), F.silu(x)[:n]) for n in range(1, 200))
