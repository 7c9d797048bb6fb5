"""Paged attention by the native kernel: float32 on the CPU, in fast and exact numerics alike."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from paceline.native.library import NativeLibrary, pointer
from paceline.ops.batch import AttentionBatch
from paceline.ops.native_rows import native_rows

__all__ = ["NativeAttention"]

HEAD_SIZES = (16, 32, 48, 64, 80, 96, 112, 128, 192, 256)


class CacheStruct(ctypes.Structure):
    """`Cache` of attention.h."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("block_size", "kv_heads", "key_size", "value_size")),
    )


class ScoringStruct(ctypes.Structure):
    """`Scoring` of attention.h."""

    _fields_ = (
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("window", ctypes.c_int64),
        ("sinks", ctypes.c_void_p),
    )


class NativeAttention:
    """Called as `paceline.ops.attention.paged_attention`; what the kernel does not take goes to another body.

    Args:
        library: The kernels.
        otherwise: The body for other dtypes and head sizes.
    """

    def __init__(self, library: NativeLibrary, otherwise: Callable[..., torch.Tensor]) -> None:
        self._library = library
        self._otherwise = otherwise

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `paceline.ops.attention.paged_attention`."""
        key_size, value_size = k_cache.shape[3], v_cache.shape[3]
        if q.dtype != torch.float32 or k_cache.dtype != q.dtype or key_size not in HEAD_SIZES or value_size != key_size:
            return self._otherwise(q, k_cache, v_cache, batch, scale, window, softcap=softcap, sinks=sinks)
        with torch._C.DisableTorchFunction():
            queries = q.contiguous()
            sinks = None if sinks is None else sinks.float().contiguous()
            out = torch.empty(q.shape[0], q.shape[1], value_size)
            cache = CacheStruct(
                pointer(k_cache), pointer(v_cache), k_cache.shape[1], k_cache.shape[2], key_size, value_size
            )
            scoring = ScoringStruct(scale, softcap or 0.0, window or 0, pointer(sinks))
            rows = native_rows(batch)
            structs = map(ctypes.byref, (cache, rows.struct, scoring))
            self._library.functions.paceline_attention(
                pointer(queries), q.shape[1], *structs, pointer(out), torch.get_num_threads()
            )
            return out
