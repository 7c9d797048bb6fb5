"""Choosing the bodies of the operations, once at start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from paceline.ops.attention import paged_attention
from paceline.ops.exact import NumericsError
from paceline.ops.exact_attention import ExactAttention

AttentionBody = Callable[..., torch.Tensor]
Numerics = Literal["fast", "exact"]


@dataclass(slots=True, frozen=True)
class Ops:
    """The bodies one engine runs.

    Attributes:
        attention: Called as `paceline.ops.attention.paged_attention`.
    """

    numerics: Numerics
    attention: AttentionBody


def select_ops(numerics: Numerics, device: torch.device | str) -> Ops:
    """Return the bodies for a numerics mode on a device.

    Raises:
        NumericsError: Exact numerics on a device other than the CPU.
    """
    if numerics == "fast":
        return Ops(numerics, paged_attention)
    kind = torch.device(device).type
    if kind != "cpu":
        raise NumericsError(
            f'exact numerics has no bodies for device "{kind}", only for "cpu"; use device="cpu" or numerics="fast"'
        )
    return Ops(numerics, ExactAttention())
