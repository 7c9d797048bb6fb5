"""Makes a model's rows independent of the batch, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from paceline.model.experts import ExactExperts, is_experts
from paceline.ops.exact import ExactLinear, NumericsError, row_tiles

__all__ = ["make_exact", "refuse_inexact_host"]


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
    """Replace the linears (the LM head too) and the experts of a float32 model in place.

    A tied LM head gets weights of its own, since exact linears keep theirs transposed. What is not a module (routers,
    activations, soft-caps) is left to `ExactFunctions`.

    Raises:
        NumericsError: if a matrix of the model has no row count that keeps its bits.
    """
    tiles: dict[tuple[int, int], tuple[int, ...]] = {}
    for parent, name, child in list(_replaceable(model)):
        setattr(parent, name, ExactExperts(child) if is_experts(child) else _exact_linear(child, tiles))


def _replaceable(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) in (nn.Linear, Conv1D) or is_experts(child):
                yield parent, name, child


def _exact_linear(linear: nn.Linear | Conv1D, tiles: dict[tuple[int, int], tuple[int, ...]]) -> ExactLinear:
    stored_io = isinstance(linear, Conv1D)
    weight_io = linear.weight.detach() if stored_io else linear.weight.detach().t()
    shape = (weight_io.shape[0], weight_io.shape[1])
    if shape not in tiles:
        tiles[shape] = row_tiles(*shape)
    bias = None if linear.bias is None else linear.bias.detach()
    return ExactLinear(weight_io.contiguous(), bias, tiles[shape])
