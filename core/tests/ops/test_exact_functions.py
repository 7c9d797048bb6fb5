"""Functions that a model calls outside of its layers, row by row and all at once."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from paceline.ops.exact import NumericsError
from paceline.ops.exact_functions import ExactFunctions

WIDTHS = (1, 6, 18, 515)
FUNCTIONS = [
    F.silu,
    F.sigmoid,
    torch.tanh,
    torch.Tensor.cos,
    torch.sin,
    torch.exp,
    F.softplus,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: torch.pow(x.abs(), 1.7),
    lambda x: x.clone().tanh_(),
    lambda x: F.softmax(x, -1),
    lambda x: x / x.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt(),
]


def rows(count, width):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count + width)) * 3


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("index", range(len(FUNCTIONS)))
def test_rows_do_not_depend_on_the_others(index, width, threads):
    function, x = FUNCTIONS[index], rows(150, width)
    with ExactFunctions():
        alone = torch.cat([function(row[None]) for row in x])
        for count in (2, 3, 7, 64, 150):
            assert torch.equal(function(x[-count:]), alone[-count:])
    torch.testing.assert_close(alone, function(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [1, 6, 515])
def test_linear_rows_do_not_depend_on_the_others(width, threads):
    x, weight, bias = rows(100, 64), rows(width, 64), rows(1, width)[0]
    with ExactFunctions():
        for given in (None, bias):
            alone = torch.cat([F.linear(row[None], weight, given) for row in x])
            for count in (2, 3, 17, 100):
                assert torch.equal(F.linear(x[None, -count:], weight, given)[0], alone[-count:])
            torch.testing.assert_close(alone, F.linear(x, weight, given), rtol=1e-5, atol=1e-4)


def test_plain_functions_are_not_exact_or_the_block_is_idle():
    x, weight = rows(150, 18), rows(6, 64)
    assert any(not torch.equal(F.sigmoid(x[-count:]), F.sigmoid(x)[-count:]) for count in range(1, 150))
    wide = rows(100, 64)
    assert any(not torch.equal(F.linear(wide[-n:], weight), F.linear(wide, weight)[-n:]) for n in range(1, 100))


def test_the_block_ends():
    mode = ExactFunctions()
    for _ in range(2):
        with mode, pytest.raises(NumericsError):
            torch.eye(3) @ torch.eye(3)
        assert torch.equal(torch.eye(3) @ torch.eye(3), torch.eye(3))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda a: a @ a, "matmul"),
        (lambda a: torch.mm(a, a), "mm"),
        (lambda a: torch.einsum("ab,bc->ac", a, a), "einsum"),
        (lambda a: torch.addmm(a, a, a), "addmm"),
        (lambda a: F.scaled_dot_product_attention(a[None], a[None], a[None]), "scaled_dot_product_attention"),
    ],
)
def test_other_products_are_refused(call, name):
    with ExactFunctions(), pytest.raises(NumericsError, match=f'E320: exact numerics: the model calls "{name}"'):
        call(torch.eye(4))


def test_outer_products_are_not():
    with ExactFunctions():
        assert torch.equal(torch.ones(5, 1) @ torch.ones(1, 3), torch.ones(5, 3))


def test_integers_are_left_alone():
    with ExactFunctions():
        assert torch.pow(torch.tensor([2, 3]), 2).tolist() == [4, 9]
