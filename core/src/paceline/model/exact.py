"""Makes a model's rows independent of the batch, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from paceline.ops.exact import ExactElementwise, ExactLinear, NumericsError, row_tiles

__all__ = ["make_exact", "refuse_inexact_host"]

_ACTIVATION_MODULES = ("torch.nn.modules.activation", "transformers.activations")


def refuse_inexact_host(device: torch.device, dtype: str) -> None:
    """Refuse exact numerics where they do not hold.

    Raises:
        NumericsError: unless the model runs in float32 on the CPU.
    """
    if device.type != "cpu":
        raise NumericsError(f'numerics "exact" holds on the CPU only, not on "{device}"; use device="cpu" or "fast"')
    if dtype not in ("auto", "float32"):
        raise NumericsError(
            f'numerics "exact" holds for float32 only, not for "{dtype}"; use dtype="float32" or "fast"'
        )


def make_exact(model: nn.Module) -> None:
    """Replace the linears (the LM head too) and activations of a float32 model in place.

    A tied LM head gets weights of its own, since exact linears keep theirs transposed.

    Raises:
        NumericsError: if a matrix of the model has no row count that keeps its bits.
    """
    tiles: dict[tuple[int, int], tuple[int, ...]] = {}
    for parent, name, child in list(_replaceable(model)):
        if not isinstance(child, nn.Linear):
            setattr(parent, name, ExactElementwise(child))
            continue
        shape = (child.in_features, child.out_features)
        if shape not in tiles:
            tiles[shape] = row_tiles(*shape)
        setattr(parent, name, ExactLinear.from_linear(child, tiles[shape]))


def _replaceable(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear) or type(child).__module__ in _ACTIVATION_MODULES:
                yield parent, name, child
