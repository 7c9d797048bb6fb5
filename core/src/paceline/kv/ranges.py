"""Draft ranges: which part of each request's draft KV is valid, per group (draft-state rule b)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.kv.errors import DraftRangeError

__all__ = ["DraftRanges"]


def _fault(old: tuple[int, int], first: int, computed: int, capacity: int) -> str:
    if not 0 <= first <= computed:
        return "which is no range: 0 <= first <= computed must hold"
    if computed > capacity:
        return f"beyond its {capacity} reserved slots; report what was written only, or ask for more lookahead slots"
    return (
        f"which does not continue the present [{old[0]}, {old[1]}); start inside it or at its end, "
        "or report an empty range first"
    )


class DraftRanges:
    """``[first, computed)`` of every row of one group.

    Attributes:
        bit: The group's bit among the components of a block.
        first: int64 ``[max_seqs]``.
        computed: int64 ``[max_seqs]``.
        num_marked: int64 ``[max_seqs]``, leading blocks already marked as holding the component.
    """

    def __init__(self, group: str, bit: int, max_seqs: int) -> None:
        self.group = group
        self.bit = bit
        self.first = np.zeros(max_seqs, dtype=np.int64)
        self.computed = np.zeros(max_seqs, dtype=np.int64)
        self.num_marked = np.zeros(max_seqs, dtype=np.int64)

    def start(self, row: int, num_tokens: int, block_size: int) -> None:
        """Begin a request with the component of its first ``num_tokens`` positions."""
        self.first[row] = 0
        self.computed[row] = num_tokens
        self.num_marked[row] = num_tokens // block_size

    def clamp(self, row: int, num_tokens: int) -> None:
        """Cut the range to the first ``num_tokens`` positions."""
        self.computed[row] = min(self.computed[row], num_tokens)
        self.first[row] = min(self.first[row], self.computed[row])

    def check(
        self,
        rows: np.ndarray,
        first: np.ndarray,
        computed: np.ndarray,
        capacity: np.ndarray,
        request_ids: Sequence[str],
    ) -> None:
        """Refuse ranges that cannot be; all arrays int64 ``[n]``.

        Raises:
            DraftRangeError: if a range is none, passes the reserved slots or does not continue the present one.
        """
        old_first, old_computed = self.first[rows], self.computed[rows]
        is_range = (first >= 0) & (first <= computed) & (computed <= capacity)
        continues = (old_first <= first) & (first <= old_computed)
        fine = is_range & (continues | (first == computed) | (old_first == old_computed))
        if fine.all():
            return
        bad = int(np.argmin(fine))
        old = (int(old_first[bad]), int(old_computed[bad]))
        new = (int(first[bad]), int(computed[bad]))
        raise DraftRangeError(
            f'KV group "{self.group}": request "{request_ids[bad]}" was reported as [{new[0]}, {new[1]}), '
            + _fault(old, *new, int(capacity[bad]))
        )

    def written_from(self, row: int, first: int) -> int:
        """First position that a report beginning at ``first`` may have written anew."""
        is_empty = self.first[row] == self.computed[row]
        return first if is_empty else int(self.computed[row])
