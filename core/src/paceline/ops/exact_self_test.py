"""Which shapes of the exact attention's products give the same bits on this CPU."""

from __future__ import annotations

import torch

from paceline.ops.exact import NumericsError, RowKernel, agreeing_row_counts

__all__ = ["TILE_KEYS", "VALUE_COLUMNS", "query_tiles"]

TILE_KEYS = 64
VALUE_COLUMNS = 16  # value sizes are padded to a multiple: threads cut the last columns otherwise in a batch of one
_TESTED_BATCHES = (1, 2, 3, 5, 8, 13, 31)


def query_tiles(key_size: int, value_size: int) -> tuple[int, ...]:
    """Self-test: query row counts with which both products of attention give bitwise the same rows, ascending.

    Each is tried in batches of several sizes. Valid for the present number of torch threads.

    Raises:
        NumericsError: There is none.
    """
    what = f"attention with heads of size {key_size} and {value_size}"
    value_size += -value_size % VALUE_COLUMNS
    scores = agreeing_row_counts(_score_kernel(key_size), _test_rows(key_size), what)
    sums = agreeing_row_counts(_value_kernel(value_size), _test_rows(TILE_KEYS), what)
    stable = [count for count in scores if count in sums and _is_batch_invariant(key_size, value_size, count)]
    if not stable:
        raise NumericsError(
            f"exact numerics: {what} gives results that depend on the batch size on this CPU with "
            f'{torch.get_num_threads()} torch threads; set OMP_NUM_THREADS=1 or use numerics="fast"'
        )
    return tuple(stable)


def _score_kernel(key_size: int) -> RowKernel:
    keys = _noise(1, TILE_KEYS, key_size)
    return lambda rows: torch.bmm(rows.unsqueeze(0), keys.transpose(1, 2))[0]


def _value_kernel(value_size: int) -> RowKernel:
    values = _noise(1, TILE_KEYS, value_size)
    return lambda rows: torch.ones(1, len(rows), value_size).baddbmm_(rows.unsqueeze(0), values)[0]


def _is_batch_invariant(key_size: int, value_size: int, count: int) -> bool:
    largest = max(_TESTED_BATCHES)
    queries, keys = _noise(largest, count, key_size), _noise(largest, TILE_KEYS, key_size)
    weights, values = _noise(largest, count, TILE_KEYS), _noise(largest, TILE_KEYS, value_size)
    start = torch.ones(largest, count, value_size)
    scores, sums = torch.bmm(queries, keys.transpose(1, 2)), torch.baddbmm(start, weights, values)
    return all(
        torch.equal(torch.bmm(queries[-n:].clone(), keys[-n:].clone().transpose(1, 2)), scores[-n:])
        and torch.equal(start[-n:].clone().baddbmm_(weights[-n:].clone(), values[-n:].clone()), sums[-n:])
        for n in _TESTED_BATCHES
    )


def _test_rows(size: int) -> torch.Tensor:
    return _noise(64, size)


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
