"""Replaces the linear layers of a float32 model on the CPU by packed ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from paceline.model.architecture import source_of
from paceline.native.library import NativeLibrary
from paceline.ops.nibbles import GROUP, REFINEMENTS
from paceline.ops.packed_linear import packed_beside

__all__ = ["QUANTIZATIONS", "TOGETHER", "pack_linears"]

# Layers of the same input, by the names that decoders give them.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))

# What is done to the weights, by its name, with all that decides what they become: part of the weights fingerprint.
QUANTIZATIONS = {
    "int8": "int8",
    "int4": f"int4: groups of {GROUP}, bfloat16 scale and minimum, {REFINEMENTS} least squares; LM head int8",
}


def pack_linears(model: nn.Module, library: NativeLibrary, quantization: str | None = None) -> None:
    """Pack every linear layer in place, the LM head too; a tied one gets weights of its own.

    Args:
        model: In float32 on the CPU.
        library: The kernels.
        quantization: A key of ``QUANTIZATIONS`` to round the weights (activations stay float32); ``None`` = as they
            are. ``"int4"`` leaves the LM head 8 bits: in 4 it alone costs a quarter of what all layers do.
    """
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    for parent, names in list(_groups(model)):
        linears = [getattr(parent, name) for name in names]
        weights = [
            linear.weight.detach().t() if isinstance(linear, Conv1D) else linear.weight.detach() for linear in linears
        ]
        biases = [None if linear.bias is None else linear.bias.detach() for linear in linears]
        bits = _bits(quantization, is_head=linears[0] is head)
        for name, packed in zip(names, packed_beside(library, weights, biases, bits=bits), strict=True):
            setattr(parent, name, packed)


def _bits(quantization: str | None, *, is_head: bool) -> int:
    if quantization is None:
        return 32
    return 4 if quantization == "int4" and not is_head else 8


def _groups(model: nn.Module) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    for parent in model.modules():
        left = {name: child for name, child in parent.named_children() if _is_packed(parent, name, child)}
        for names in TOGETHER:
            if all(name in left for name in names):
                yield parent, names
                left = {name: child for name, child in left.items() if name not in names}
        yield from ((parent, (name,)) for name in left)


def _is_packed(parent: nn.Module, name: str, child: nn.Module) -> bool:
    """Whether it is a linear layer whose weight no code of its owner looks at, as some routers do."""
    owner: Any = type(parent)
    return type(child) in (nn.Linear, Conv1D) and f"self.{name}.weight" not in source_of(owner)
