"""The rows of a step as the kernels take them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from paceline.native.library import pointer
from paceline.ops.batch import AttentionBatch

__all__ = ["NativeRows", "native_rows"]

_UNIT_ROWS = 8
_INT64 = ctypes.c_int64


class RowsStruct(ctypes.Structure):
    """`Rows` of attention.h."""

    _fields_ = (
        *((name, _INT64) for name in ("count", "num_units", "table_width", "path_width")),
        *(
            (name, ctypes.c_void_p)
            for name in ("units", "sequence", "visible", "num_keys", "first_keys", "paths", "tables", "slots")
        ),
    )


@dataclass(slots=True)
class NativeRows:
    """A struct and the arrays that it points to."""

    struct: RowsStruct
    arrays: tuple[np.ndarray, ...]


def native_rows(batch: AttentionBatch) -> NativeRows:
    """Lay out a batch, once a step."""
    rows: NativeRows = batch.cached("native", lambda: _laid_out(batch))
    return rows


def _laid_out(batch: AttentionBatch) -> NativeRows:
    units = _units(batch.query_starts)
    tables = np.ascontiguousarray(batch.block_tables.numpy())
    paths = None if batch.paths is None else np.ascontiguousarray(batch.paths)
    slots = np.ascontiguousarray(batch.slots.numpy())
    arrays = (units, batch.row_seq, batch.visible, batch.num_keys, batch.first_keys, paths, tables, slots)
    struct = RowsStruct(
        batch.num_rows,
        len(units),
        tables.shape[1],
        0 if paths is None else paths.shape[1],
        *(pointer(array) for array in arrays),
    )
    return NativeRows(struct, tuple(array for array in arrays if array is not None))


def _units(query_starts: np.ndarray) -> np.ndarray:
    """int64 [units, 2]: first row and number of rows of runs of at most 8 rows of one sequence."""
    counts = np.diff(query_starts)
    per_seq = -(-counts // _UNIT_ROWS)
    seq = np.repeat(np.arange(len(counts)), per_seq)
    within = np.arange(len(seq)) - np.repeat(np.cumsum(per_seq) - per_seq, per_seq)
    first = query_starts[seq] + within * _UNIT_ROWS
    return np.stack([first, np.minimum(query_starts[seq + 1] - first, _UNIT_ROWS)], axis=1).astype(np.int64)
