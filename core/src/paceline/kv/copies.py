"""Copies that admissions owe: heads of blocks that requests share in part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.kv.cache import BlockCache

__all__ = ["PendingCopies", "PendingCopy"]


@dataclass(frozen=True, slots=True)
class PendingCopy:
    """Block ``source`` is to be copied into the block at ``depth`` of a request's table."""

    source: int
    depth: int


class PendingCopies:
    """At most one copy for each request. The source is pinned: it is neither freed nor evicted before it is copied."""

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._by_request: dict[str, PendingCopy] = {}

    def __len__(self) -> int:
        return len(self._by_request)

    def items(self) -> Iterable[tuple[str, PendingCopy]]:
        """Request ids and what they are owed."""
        return self._by_request.items()

    @property
    def sources(self) -> Iterable[int]:
        """The pinned blocks, once for each copy."""
        return [copy.source for copy in self._by_request.values()]

    def add(self, request_id: str, copy: PendingCopy) -> None:
        """Owe a copy, and pin its source."""
        self._cache.pin(copy.source)
        self._by_request[request_id] = copy

    def cancel(self, request_id: str) -> None:
        """Owe nothing for this request any more; one that is owed nothing is fine."""
        copy = self._by_request.pop(request_id, None)
        if copy is not None:
            self._cache.drop([copy.source])

    def take(self) -> dict[str, PendingCopy]:
        """Hand over all copies and let go of their sources: the caller copies before anything else is written."""
        taken, self._by_request = self._by_request, {}
        for copy in taken.values():
            self._cache.drop([copy.source])
        return taken
