"""A row of numbers for each live request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["RequestTable"]


class RequestTable:
    """Rows are handed out as requests come and taken back when they are released.

    Attributes:
        own: float64 ``[rows]``: what the request adds to the log odds of a drafted token.
        seen: float64 ``[rows, kinds]``: drafts delivered, by kind.
        asked: int64 ``[rows]``: tokens asked of the proposer in this step.
        kind: int64 ``[rows]``: kind of the draft that came.
        tried: int64 ``[rows]``: the last step in which a draft was asked or verified; 0 = never.
    """

    def __init__(self, num_kinds: int) -> None:
        self.own = np.zeros(8)
        self.seen = np.zeros((8, num_kinds))
        self.asked, self.kind, self.tried = np.zeros((3, 8), dtype=np.int64)
        self._rows: dict[str, int] = {}
        self._free = list(range(8))

    def rows(self, request_ids: Sequence[str]) -> np.ndarray:
        """int64 ``[requests]``: the row of each, with all zeros for one that is new."""
        try:
            return np.array([self._rows[request_id] for request_id in request_ids], dtype=np.int64)
        except KeyError:
            return np.array([self._row(request_id) for request_id in request_ids], dtype=np.int64)

    def release(self, request_ids: Iterable[str]) -> None:
        """Forget requests; unknown ones are fine."""
        for request_id in request_ids:
            row = self._rows.pop(request_id, None)
            if row is not None:
                self._free.append(row)

    def _row(self, request_id: str) -> int:
        if request_id in self._rows:
            return self._rows[request_id]
        if not self._free:
            self._grow()
        row = self._rows[request_id] = self._free.pop()
        for values in (self.own, self.seen, self.asked, self.kind, self.tried):
            values[row] = 0
        return row

    def _grow(self) -> None:
        count = len(self.asked)
        self._free.extend(range(count, 2 * count))
        for name in ("own", "seen", "asked", "kind", "tried"):
            values = getattr(self, name)
            setattr(self, name, np.concatenate([values, np.zeros_like(values)]))
