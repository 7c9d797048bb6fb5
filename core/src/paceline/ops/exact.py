"""Exact CPU bodies: a row's float32 result does not depend, bit for bit, on what is computed beside it.

Matrix kernels choose their order of summation by the number of rows, and split work among threads by it, so they
are called with few fixed row counts that a self-test has found to agree. Vectorised functions (silu, gelu) treat
the last elements of a range otherwise than the rest, so ranges are padded. Sums over the innermost dimension,
`amax`, sqrt, and + - * / need no care.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional as F

from paceline.api.errors import PacelineError

ROW_COUNTS = (2, 4, 8, 16, 32, 64)
_ANCHORS = (16, 8, 4, 2)
_ELEMENTS = 16384  # below torch's threshold for splitting a range among threads
_VECTOR = 64  # elements; a multiple of what one vector step handles on any CPU
_POOL_COLUMNS = 4096
_COLUMNS = 16  # matrices are padded to a multiple: the kernels for narrow ones go by the number of rows

RowKernel = Callable[[torch.Tensor], torch.Tensor]


class NumericsError(PacelineError):
    """Exact numerics cannot be kept here."""

    code = "PACELINE-E320"


class ExactLinear(nn.Module):
    """`nn.Linear` whose row results do not depend on the other rows, float32 on CPU.

    Holds the weight as [in, out], with its columns padded (`weight_io`). Rows are computed in zero-padded tiles of
    `row_tiles(in, out)` rows.
    """

    def __init__(self, weight_io: torch.Tensor, bias: torch.Tensor | None, tiles: tuple[int, ...]) -> None:
        super().__init__()
        self.in_features, self.out_features = weight_io.shape
        self.weight_io = nn.Parameter(padded_columns(weight_io), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.tiles = tiles

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] float32 -> [..., out]."""
        out = exact_mm(x.reshape(-1, self.in_features), self.weight_io, self.tiles, self.out_features)
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], self.out_features)


def padded_columns(weight_io: torch.Tensor) -> torch.Tensor:
    """[..., in, out] with zeros to the next multiple of 16 columns, contiguous."""
    return F.pad(weight_io, (0, -weight_io.shape[-1] % _COLUMNS)).contiguous()


def exact_mm(x: torch.Tensor, weight_io: torch.Tensor, tiles: tuple[int, ...], num_columns: int) -> torch.Tensor:
    """x [T, in] @ padded weight_io [in, >= num_columns] in tiles of allowed row counts (ascending)."""
    num_rows = x.shape[0]
    pieces = list(cut_rows(num_rows, tiles))
    with torch._C.DisableTorchFunction():
        x = _aligned(F.pad(x, (0, 0, 0, sum(pieces) - num_rows)))
        out = x.new_empty(x.shape[0], weight_io.shape[1])
        for rows, result in zip(x.split(pieces), out.split(pieces), strict=True):
            torch.mm(rows, weight_io, out=result)
        return out[:num_rows, :num_columns].contiguous()


def cut_rows(num_rows: int, tiles: tuple[int, ...]) -> Iterator[int]:
    """Tile sizes that cover num_rows; only the last one is padded, by less than 16 rows if the tiles allow it."""
    while num_rows > 0:
        fitting = [size for size in tiles if size <= num_rows and size >= _ANCHORS[0]]
        size = fitting[-1] if fitting else next((size for size in tiles if size >= num_rows), tiles[-1])
        yield size
        num_rows -= size


def exact_elementwise(function: RowKernel, x: torch.Tensor) -> torch.Tensor:
    """function(x) for a function that works element by element, in ranges that no vector or thread border cuts."""
    flat = x.reshape(-1)
    padded = F.pad(flat, (0, -len(flat) % _VECTOR))
    parts = [function(part) for part in padded.split(_ELEMENTS)] or [flat]
    joined = parts[0] if len(parts) == 1 else torch.cat(parts)
    return joined[: len(flat)].view(x.shape)


def row_tiles(in_features: int, out_features: int) -> tuple[int, ...]:
    """Self-test: the row counts with which `torch.mm` of this shape gives bitwise the same rows, ascending.

    Valid for the present number of torch threads. Costs about 25 calls of the kernel; run it once a shape.

    Raises:
        NumericsError: No row count gives results that do not depend on a row's place in the tile.
    """
    generator = torch.Generator().manual_seed(0)
    pool = torch.rand(in_features, min(out_features, _POOL_COLUMNS), generator=generator) - 0.5
    weight = padded_columns(pool.repeat(1, -(-out_features // pool.shape[1]))[:, :out_features])
    rows = torch.randn(max(ROW_COUNTS), in_features, generator=generator)
    return agreeing_row_counts(lambda x: torch.mm(x, weight), rows, f"matrix {in_features} x {out_features}")


def agreeing_row_counts(kernel: RowKernel, rows: torch.Tensor, what: str) -> tuple[int, ...]:
    """Row counts whose results for the same rows [N, in] are bitwise equal, at every place in the tile.

    The largest count of 16, 8, 4, 2 that is consistent in itself leads; all counts that agree with it are returned.

    Raises:
        NumericsError: There is none; `what` names the kernel.
    """
    for anchor in _ANCHORS:
        expected = kernel(rows[:anchor].clone())
        if _agrees(kernel, rows[:anchor], expected, anchor):
            wide = torch.cat([kernel(part.clone()) for part in rows.split(anchor)])
            return tuple(count for count in ROW_COUNTS if _agrees(kernel, rows, wide, count))
    raise NumericsError(
        f"exact numerics: {what} in float32 gives row results that depend on the other rows for every row count of "
        f"{_ANCHORS} on this CPU with {torch.get_num_threads()} torch threads; set OMP_NUM_THREADS=1 or use "
        'numerics="fast"'
    )


def _agrees(kernel: RowKernel, rows: torch.Tensor, expected: torch.Tensor, count: int) -> bool:
    """Whether tiles of `count` rows give the expected results, also rotated, padded with zeros and beside others."""
    tile, result = rows[:count], expected[:count]
    if len(tile) < count or not torch.equal(kernel(tile.clone()), result):
        return False
    alone = torch.cat((tile[:1], torch.zeros_like(tile[1:])))
    return torch.equal(kernel(alone)[0], result[0]) and all(
        torch.equal(kernel(tile.roll(turn, 0)), result.roll(turn, 0)) for turn in (1, count // 2)
    )


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """x at an address that does not change how the matrix kernel begins."""
    x = x.contiguous()
    return x if x.data_ptr() % 64 == 0 else x.clone()
