"""Choosing the bodies of the operations, once at start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from paceline.native.library import native_library
from paceline.ops.attention import paged_attention
from paceline.ops.exact import NumericsError
from paceline.ops.exact_attention import ExactAttention
from paceline.ops.native_attention import NativeAttention

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
    kind = torch.device(device).type
    if numerics == "fast":
        return Ops(numerics, _with_native(paged_attention, kind))
    if kind != "cpu":
        raise NumericsError(
            f'exact numerics has no bodies for device "{kind}", only for "cpu"; use device="cpu" or numerics="fast"'
        )
    return Ops(numerics, _with_native(ExactAttention(), kind))


def _with_native(body: AttentionBody, device_type: str) -> AttentionBody:
    """The native kernel where there is one, and ``body`` for what it does not take."""
    library = native_library() if device_type == "cpu" else None
    return body if library is None else NativeAttention(library, body)
