"""Comparisons that say what differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["check_field", "check_same", "check_tokens"]


def check_tokens(emitted: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> None:
    """Each prompt emitted what is expected of it."""
    for index, (own, wanted) in enumerate(zip(emitted, expected, strict=True)):
        assert list(own) == list(wanted), f"prompt {index} emitted {own}, without the proposer {wanted}"


def check_same(first: Sequence[Any], second: Sequence[Any], fault: str) -> None:
    """Two lists of drafts are the same."""
    assert len(first) == len(second), f"{fault}: {len(first)} drafts, then {len(second)}"
    for own, other in zip(first, second, strict=True):
        assert own == other, f"{fault}: {own}, then {other} (tokens known, drafted, parents)"


def check_field(name: str, values: Any, shape: tuple[int, ...]) -> None:
    """An optional field of drafts has its shape."""
    if values is not None:
        found = tuple(values.shape) if isinstance(values, torch.Tensor) else np.shape(values)
        assert found == shape, f"Drafts.{name} has shape {list(found)}, it must be {list(shape)}"
