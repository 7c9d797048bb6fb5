"""Blocks by what they begin with: where the next tokens of a prompt are looked for when no whole block matches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

import numpy as np

__all__ = ["HeadIndex", "Place"]

Owner = TypeVar("Owner")
Place = tuple[bytes, int]
"""Key of the block before, and the block's first token."""

_MAX_COMPARED = 16  # a prompt that thousands have continued must not compare itself with all of them


class HeadIndex(Generic[Owner]):
    """Owners of blocks, each with the tokens whose KV its block holds, found by place."""

    def __init__(self) -> None:
        self._owners: dict[Place, dict[Owner, np.ndarray]] = {}

    def __iter__(self) -> Iterator[tuple[Place, Owner, np.ndarray]]:
        """All places, owners and tokens."""
        return ((place, owner, held) for place, owners in self._owners.items() for owner, held in owners.items())

    def put(self, place: Place, owner: Owner, tokens: np.ndarray) -> None:
        """Note an owner's tokens (int64, at least 1, at most a block), in place of those noted before."""
        self._owners.setdefault(place, {})[owner] = tokens

    def discard(self, place: Place, owner: Owner) -> None:
        """Forget an owner; one that is not there is fine."""
        owners = self._owners.get(place, {})
        owners.pop(owner, None)
        if not owners:
            self._owners.pop(place, None)

    def clear(self) -> None:
        """Forget all."""
        self._owners.clear()

    def longest(self, parent_key: bytes, tokens: np.ndarray) -> tuple[Owner, int] | None:
        """The owner that shares most leading tokens with ``tokens`` (int64), and how many; looks at the newest only."""
        if not len(tokens):
            return None
        owners = self._owners.get((parent_key, int(tokens[0])), {})
        newest = islice(reversed(owners.items()), _MAX_COMPARED)
        shared = [(owner, _num_shared(held, tokens)) for owner, held in newest]
        return max(shared, key=lambda pair: pair[1], default=None)


def _num_shared(left: np.ndarray, right: np.ndarray) -> int:
    length = min(len(left), len(right))
    differ = left[:length] != right[:length]
    return int(differ.argmax()) if differ.any() else length
