"""Asking a constraint for masks, as the engine does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.api import ConstrainedRequest, Constraint, ConstraintBatch
from paceline.testing.models import END_TOKEN_ID, VOCAB_SIZE

__all__ = ["Masks", "constrained_request"]

PATH_LENGTH = 6


class Masks:
    """Asks a constraint for single rows or several."""

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self._ids = (f"request-{number:06}" for number in itertools.count())

    def new_id(self) -> str:
        """An id that no request had."""
        return next(self._ids)

    def row(self, asked: Any, output: Sequence[int], drafted: Sequence[int] = (), request_id: str = "") -> np.ndarray:
        """bool ``[vocab]``: what may follow; of a new request unless an id is given."""
        row: np.ndarray = self.rows([(request_id or self.new_id(), asked, output, drafted)])[0]
        return row

    def rows(self, rows: Sequence[tuple[str, Any, Sequence[int], Sequence[int]]]) -> np.ndarray:
        """bool ``[rows, vocab]`` of requests of their own, in one batch."""
        width = max(len(drafted) for *_, drafted in rows)
        padded = [[*drafted, *[-1] * (width - len(drafted))] for *_, drafted in rows]
        batch = ConstraintBatch(
            requests=tuple(constrained_request(request_id, asked, output) for request_id, asked, output, _ in rows),
            row_request=np.arange(len(rows)),
            drafted=np.array(padded, dtype=np.int64).reshape(len(rows), width),
        )
        packed = np.asarray(self.constraint.masks(batch))
        wanted = (len(rows), -(-VOCAB_SIZE // 8))
        fits = packed.dtype == np.uint8 and packed.shape == wanted
        assert fits, f"masks returned {packed.dtype} {list(packed.shape)}, not uint8 {list(wanted)}"
        return np.unpackbits(packed, axis=1, bitorder="little")[:, :VOCAB_SIZE].astype(bool)

    def path(self, asked: Any, seed: int) -> list[int]:
        """Tokens that may follow one another, the end token not among them, as far as there are any."""
        random, path = np.random.default_rng(seed), list[int]()
        while len(path) < PATH_LENGTH:
            allowed = self.row(asked, path)
            allowed[END_TOKEN_ID] = False
            if not allowed.any():
                break
            path.append(int(random.choice(np.flatnonzero(allowed))))
        return path


def constrained_request(request_id: str, asked: Any, output: Sequence[int]) -> ConstrainedRequest:
    """A request of the tests, with what it has emitted."""
    return ConstrainedRequest(
        request_id=request_id,
        asked=asked,
        end_token_ids=(END_TOKEN_ID,),
        prompt=_read_only([5, 6, 7]),
        output=_read_only(output),
    )


def _read_only(tokens: Sequence[int]) -> np.ndarray:
    array = np.array(tokens, dtype=np.int64)
    array.flags.writeable = False
    return array
