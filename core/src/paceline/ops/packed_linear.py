"""Linear layers on packed weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from paceline.native.library import PANEL, NativeLibrary, pack, pack_nibbles
from paceline.ops.nibbles import rounded_to_nibbles

__all__ = ["PackedLinear", "packed_beside", "plain_linear", "rounded"]

_LARGEST = 127


class PackedLinear(nn.Module):
    """`nn.Linear` on the CPU by the native kernel, in float32. A row's result does not depend on the other rows.

    Attributes:
        packed: [ceil(out / 48), in, 48], float32 or int8, or what ``pack_nibbles`` gives; perhaps a slice of a tensor
            that holds the layers beside it.
        padded_scale: [48 * ceil(out / 48)], what each column of 8-bit weights is multiplied by; else None.
        padded_bias: [48 * ceil(out / 48)] or None.
    """

    def __init__(
        self,
        library: NativeLibrary,
        packed: torch.Tensor,
        padded_scale: torch.Tensor | None,
        padded_bias: torch.Tensor | None,
        in_features: int,
        out_features: int,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self._library = library
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("padded_scale", padded_scale, persistent=False)
        self.register_buffer("padded_bias", padded_bias, persistent=False)

    @property
    def weight_bits(self) -> int:
        """4, 8 or 32."""
        return {torch.int32: 4, torch.int8: 8, torch.float32: 32}[self.packed.dtype]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] float32 -> [..., out]."""
        with torch._C.DisableTorchFunction():
            rows = x.reshape(-1, self.in_features).contiguous()
            out = self._product(rows)
            return out.view(*x.shape[:-1], self.out_features)

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        if self.padded_scale is not None:
            return self._library.matmul_int8(rows, self.packed, self.padded_scale, self.padded_bias, self.out_features)
        product = self._library.matmul_int4 if self.weight_bits == 4 else self._library.matmul
        return product(rows, self.packed, self.padded_bias, self.out_features)


def plain_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """PyTorch's own layer on weights [out, in] that are there."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear


def rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [out, in] as int8 and a scale for each output, [out]: the largest of a row becomes 127."""
    scale = weight.float().abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST
    return (weight.float() / scale[:, None]).round().to(torch.int8), scale


def packed_beside(
    library: NativeLibrary,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    *,
    bits: int = 32,
) -> list[PackedLinear]:
    """Layers of the same input, one behind another in memory, so that one product serves them all.

    Args:
        library: The kernels.
        weights: [out, in] of each.
        biases: [out] of each, or None.
        bits: Of a weight: 32 as it is, 8 with a scale for each output, 4 as ``rounded_to_nibbles`` has it.
    """
    sizes = [weight.shape[0] for weight in weights]
    parts, scales = zip(*(_packed(weight, bits) for weight in weights), strict=True)
    together = torch.cat(parts)
    scale = _padded(scales) if bits == 8 else None
    bias = None if all(bias is None for bias in biases) else _padded(_filled(biases, sizes))
    stops = torch.tensor([len(part) for part in parts]).cumsum(0).tolist()
    made = []
    for size, part, stop in zip(sizes, parts, stops, strict=True):
        start = stop - len(part)
        own_scale, own_bias = (
            None if values is None else values[start * PANEL : stop * PANEL] for values in (scale, bias)
        )
        made.append(PackedLinear(library, together[start:stop], own_scale, own_bias, weights[0].shape[1], size))
    return made


def _packed(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The panels, and of 8 bits the scales [out]."""
    if bits == 4:
        return pack_nibbles(*rounded_to_nibbles(weight)), None
    values, scale = rounded(weight) if bits == 8 else (weight, None)
    return pack(values), scale


def _filled(biases: Sequence[torch.Tensor | None], sizes: Sequence[int]) -> list[torch.Tensor]:
    return [torch.zeros(size) if bias is None else bias.float() for bias, size in zip(biases, sizes, strict=True)]


def _padded(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([F.pad(row, (0, -len(row) % PANEL)) for row in rows])
