"""What a model calls outside its linear layers and its attention, made independent of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from paceline.ops.exact import NumericsError, exact_elementwise, exact_mm, padded_columns, row_tiles

__all__ = ["ExactFunctions"]

# Vectorised approximations: the last elements of a range are computed otherwise than the rest.
# fmt: off
_APPROXIMATED = frozenset({
    "celu", "cos", "cosh", "elu", "erf", "erfc", "exp", "exp2", "expm1", "gelu", "log", "log10", "log1p", "log2",
    "logsigmoid", "mish", "pow", "selu", "sigmoid", "silu", "sin", "sinh", "softplus", "tan", "tanh",
})
_PRODUCTS = frozenset({
    "__matmul__", "__rmatmul__", "addbmm", "addmm", "addmv", "baddbmm", "bilinear", "bmm", "chain_matmul", "conv1d",
    "conv2d", "conv3d", "dot", "einsum", "grouped_mm", "_grouped_mm", "inner", "matmul", "mm", "multi_dot", "mv",
    "scaled_dot_product_attention", "tensordot",
})
# fmt: on


class ExactFunctions(TorchFunctionMode):
    """Inside the block, float32 functions on CPU give rows that do not depend, bit for bit, on the other rows.

    Elementwise approximations run in padded ranges and `F.linear` in fixed tiles of rows, whoever calls them: modules
    and code in between (routers, gates, soft-caps, rotary embeddings). Other products of matrices are refused, as
    nothing is known about their order of summation. `exact_mm` and the exact attention are not looked into.

    Raises:
        NumericsError: naming a product that is made outside of linear layers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tiles: dict[tuple[int, int], tuple[int, ...]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "linear":
            return self._linear(*args, **kwargs)
        if name.removesuffix("_") in _APPROXIMATED and args and _is_float(args[0]):
            return _elementwise(func, name, args, kwargs)
        if name in _PRODUCTS:
            _refuse_sums(name, args)
        return func(*args, **kwargs)

    def _linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        size, num_columns = weight.shape[1], weight.shape[0]
        if (size, num_columns) not in self._tiles:
            self._tiles[size, num_columns] = row_tiles(size, num_columns)
        tiles = self._tiles[size, num_columns]
        out = exact_mm(x.reshape(-1, size), padded_columns(weight.t()), tiles, num_columns)
        return (out if bias is None else out + bias).view(*x.shape[:-1], num_columns)


def _elementwise(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    x, *others = args
    if any(isinstance(other, torch.Tensor) for other in others):
        raise NumericsError(
            f'exact numerics: the model calls "{name}" on two tensors, whose bits depend on their shape; use '
            'numerics="fast"'
        )
    if name.endswith("_"):
        return x.copy_(exact_elementwise(lambda part: func(part, *others, **kwargs), x))
    return exact_elementwise(lambda part: func(part, *others, **kwargs), x)


def _refuse_sums(name: str, args: tuple[Any, ...]) -> None:
    """A product over one element is no sum (rotary embeddings: frequencies times positions)."""
    is_outer = name.strip("_") == "matmul" and args[0].shape[-1] == 1
    if not is_outer:
        raise NumericsError(
            f'exact numerics: the model calls "{name}" outside of linear layers and its attention, where the order of '
            'summation may follow the batch; use numerics="fast"'
        )


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
