"""The kernels as Python calls them. Tensors are float32 on the CPU and contiguous unless said otherwise."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch

from paceline.native.build import NativeBuildError, built_library, cache_folder

__all__ = ["PANEL", "NativeKernelWarning", "NativeLibrary", "native_library", "pack", "pack_nibbles", "pointer"]

PANEL = 48

_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES = {
    "paceline_matmul": [_POINTER] * 4 + [_INT64] * 4,
    "paceline_matmul_int8": [_POINTER] * 5 + [_INT64] * 4,
    "paceline_matmul_int4": [_POINTER] * 4 + [_INT64] * 4,
    "paceline_attention": [_POINTER, _INT64, _POINTER, _POINTER, _POINTER, _POINTER, _INT64],
    "paceline_decoder": [_POINTER] * 6,
    "paceline_sample": [_POINTER, _INT64, _INT64, _INT64, _POINTER, _POINTER, _POINTER, _INT64],
    "paceline_rms_norm": [_POINTER, _POINTER, _POINTER, _INT64, _POINTER],
}


class NativeKernelWarning(UserWarning):
    """The kernels are not in use, and what is runs several times slower."""


class SamplingStruct(ctypes.Structure):
    """`Sampling` of sampling.h."""

    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")
    )


class NativeLibrary:
    """The loaded kernels.

    Attributes:
        functions: The functions by name, with their signatures set.
        digest: Names the build: what fixes the bits of its results.
    """

    def __init__(self, path: Path) -> None:
        self.functions = ctypes.CDLL(str(path))
        self.digest = path.stem
        for name, arguments in _SIGNATURES.items():
            function = getattr(self.functions, name)
            function.argtypes, function.restype = arguments, None

    def matmul(self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, columns: int) -> torch.Tensor:
        """x [rows, in] @ weights packed by ``pack`` (+ bias [columns]) -> [rows, columns]."""
        out = torch.empty(x.shape[0], columns)
        sizes = (x.shape[0], x.shape[1], columns, torch.get_num_threads())
        self.functions.paceline_matmul(pointer(x), pointer(packed), pointer(bias), pointer(out), *sizes)
        return out

    def matmul_int8(
        self, x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, columns: int
    ) -> torch.Tensor:
        """The same with int8 weights and a factor for each column, scale [columns]."""
        out = torch.empty(x.shape[0], columns)
        sizes = (x.shape[0], x.shape[1], columns, torch.get_num_threads())
        tensors = (x, packed, scale, bias, out)
        self.functions.paceline_matmul_int8(*map(pointer, tensors), *sizes)
        return out

    def matmul_int4(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, columns: int
    ) -> torch.Tensor:
        """The same with weights packed by ``pack_nibbles``."""
        out = torch.empty(x.shape[0], columns)
        sizes = (x.shape[0], x.shape[1], columns, torch.get_num_threads())
        self.functions.paceline_matmul_int4(*map(pointer, (x, packed, bias, out)), *sizes)
        return out

    def sample(self, scores: torch.Tensor, columns: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The token of each row of scores [rows, size], int64 [rows], and whether there are none to trust, bool [rows].

        Args:
            scores: Rows may lie apart.
            columns: [rows] each: temperature, top_k, top_p, min_p, seeds and positions of ``RowParams``.
        """
        num_rows, size = scores.shape
        assert scores.stride(1) == 1 or size == 1
        tokens, invalid = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows, dtype=torch.bool)
        struct = SamplingStruct(*map(pointer, columns))
        sizes = (scores.stride(0), num_rows, size)
        self.functions.paceline_sample(
            pointer(scores), *sizes, ctypes.byref(struct), pointer(tokens), pointer(invalid), torch.get_num_threads()
        )
        return tokens, invalid


def pointer(tensor: torch.Tensor | np.ndarray | None) -> int | None:
    """Address of a contiguous tensor's or array's first element."""
    if tensor is None:
        return None
    if isinstance(tensor, np.ndarray):
        return int(tensor.ctypes.data)
    return int(tensor.data_ptr())


def pack(weight: torch.Tensor) -> torch.Tensor:
    """weight [columns, in] as [ceil(columns / 48), in, 48], zeros behind the last column."""
    columns, size = weight.shape
    filled = torch.nn.functional.pad(weight, (0, 0, 0, -columns % PANEL))
    return filled.view(-1, PANEL, size).transpose(1, 2).contiguous()


def pack_nibbles(values: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    """Weights of 4 bits as int32 [ceil(columns / 48), groups, 5, 48], zeros behind the last column.

    Four words hold a group's values, 8 inputs each, the first in the lowest bits; the fifth holds its scale in the
    high half and its minimum.

    Args:
        values: uint8 [columns, groups, 32], 0 to 15.
        scale: bfloat16 [columns, groups].
        minimum: bfloat16 [columns, groups].
    """
    columns, groups, _ = values.shape
    places = torch.arange(0, 32, 4, dtype=torch.int32)
    words = (values.view(columns, groups, 4, 8).int() << places).sum(dim=-1, dtype=torch.int32)
    high, low = (half.view(torch.int16).int() for half in (scale, minimum))
    rows = torch.cat([words, (high << 16 | low & 0xFFFF)[..., None]], dim=2)
    filled = torch.nn.functional.pad(rows, (0, 0, 0, 0, 0, -columns % PANEL))
    return filled.view(-1, PANEL, groups, 5).permute(0, 2, 3, 1).contiguous()


@cache
def native_library() -> NativeLibrary | None:
    """The kernels, built if need be and checked; ``None``, with a warning that says why, where they cannot be had.

    ``PACELINE_NATIVE=0`` switches them off without one.
    """
    if os.environ.get("PACELINE_NATIVE") == "0":
        return None
    try:
        library = NativeLibrary(built_library(cache_folder()))
        _check(library)
    except (NativeBuildError, OSError) as error:
        warnings.warn(
            f"the native CPU kernels are not in use, and PyTorch's own run several times slower: {error}; "
            "PACELINE_NATIVE=0 silences this",
            NativeKernelWarning,
            stacklevel=2,
        )
        return None
    return library


def _check(library: NativeLibrary) -> None:
    """Products against PyTorch's, and rows alone against rows in company by bits.

    Raises:
        NativeBuildError: if they differ.
    """
    generator = torch.Generator().manual_seed(0)
    for size, columns in ((64, 100), (576, 200)):
        weight = torch.randn(columns, size, generator=generator)
        x = torch.randn(19, size, generator=generator)
        packed = pack(weight)
        out = library.matmul(x, packed, None, columns)
        alone = torch.cat([library.matmul(row[None], packed, None, columns) for row in x])
        is_close = torch.allclose(out.double(), x.double() @ weight.double().T, atol=1e-4)
        if not is_close or not torch.equal(out, alone):
            raise NativeBuildError("the kernels fail their self-test on this machine; name another compiler with CXX")
