"""Least recently used first: the eviction policy that comes with the core, as a plugin like any other."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from paceline.api import (
    BlockFacts,
    EvictionCapabilities,
    EvictionContext,
    EvictionPolicy,
    EvictionPolicySpec,
    TargetFacts,
    hookimpl,
)

__all__ = ["LRUOptions", "LRUPolicy", "paceline_eviction_policies"]


class LRUOptions(BaseModel):
    """It has none."""

    model_config = ConfigDict(extra="forbid")


class LRUPolicy(EvictionPolicy):
    """The block whose last use is longest ago goes first; among equals the deepest, then the lowest id.

    A heap from which withdrawn blocks are dropped when they come up: O(log blocks) for every event and victim.
    """

    def __init__(self) -> None:
        self._current: dict[int, tuple[float, int, int]] = {}
        self._heap: list[tuple[float, int, int]] = []

    def evictable(self, blocks: Sequence[BlockFacts]) -> None:
        """Rank the blocks."""
        for block in blocks:
            rank = (block.last_use_s, -block.depth, block.block_id)
            self._current[block.block_id] = rank
            heapq.heappush(self._heap, rank)
        if len(self._heap) > 2 * len(self._current) + 64:
            self._heap = sorted(self._current.values())

    def not_evictable(self, block_ids: Sequence[int]) -> None:
        """Forget them until they are offered again."""
        for block_id in block_ids:
            self._current.pop(block_id, None)

    def removed(self, block_ids: Sequence[int]) -> None:
        """Forget them."""
        self.not_evictable(block_ids)

    def victims(self, count: int) -> Sequence[int]:
        """Return the ``count`` that go first, or all if there are fewer."""
        chosen: list[tuple[float, int, int]] = []
        while self._heap and len(chosen) < count:
            rank = heapq.heappop(self._heap)
            if self._current.get(rank[2]) == rank and (not chosen or chosen[-1] != rank):
                chosen.append(rank)
        for rank in chosen:
            heapq.heappush(self._heap, rank)
        return [block_id for *_, block_id in chosen]


def _describe(options: LRUOptions, target: TargetFacts) -> EvictionCapabilities:
    return EvictionCapabilities()


def _build(options: LRUOptions, context: EvictionContext) -> LRUPolicy:
    return LRUPolicy()


@hookimpl
def paceline_eviction_policies() -> Iterable[EvictionPolicySpec]:
    """Declare the policy."""
    return [
        EvictionPolicySpec(
            name="lru",
            summary="Evicts the block whose last use is longest ago, the end of a chain before its head.",
            options=LRUOptions,
            requires_api=">=0.1,<0.2",
            describe=_describe,
            build=_build,
        )
    ]
