"""The driver of an eviction policy: it tells the policy what happens, and checks what the policy answers."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from paceline.api.eviction import BlockFacts, EvictionPolicy
from paceline.kv.boundary import Boundary, no_boundary
from paceline.kv.errors import EvictionError
from paceline.kv.index import Entry

__all__ = ["EvictionDriver"]


def recompute_cost(depth: int, block_size: int) -> float:
    """Key positions that the queries of a block attend to: what making it again costs, relative to other blocks."""
    return block_size * (depth * block_size + (block_size + 1) / 2)


class EvictionDriver:
    """Announces evictable blocks and asks for victims. Changes neither pool nor index.

    Args:
        policy: The plugin's object.
        name: Its name, for messages.
        block_size: Tokens per block.
        boundary: ``hook -> context`` in which the policy's code runs.
    """

    def __init__(self, policy: EvictionPolicy, name: str, block_size: int, boundary: Boundary = no_boundary) -> None:
        self.evictable: set[int] = set()
        self._policy = policy
        self._name = name
        self._block_size = block_size
        self._boundary = boundary
        self._wants_touched = type(policy).touched is not EvictionPolicy.touched

    def _facts(self, entries: Sequence[Entry]) -> list[BlockFacts]:
        return [
            BlockFacts(
                block_id=entry.block_id,
                key=entry.key,
                depth=entry.depth,
                hits=entry.hits,
                last_use_s=entry.last_use_s,
                created_s=entry.created_s,
                num_tokens=self._block_size,
                recompute_cost=recompute_cost(entry.depth, self._block_size),
                trust_domain=entry.trust_domain,
                retention_priority=entry.retention.priority,
                retention_expiry_s=entry.retention.expiry_s,
            )
            for entry in entries
        ]

    def offer(self, entries: Sequence[Entry]) -> None:
        """Announce blocks that may be evicted from now on."""
        if entries:
            self.evictable.update(entry.block_id for entry in entries)
            with self._boundary("evictable"):
                self._policy.evictable(self._facts(entries))

    def withdraw(self, block_ids: Sequence[int]) -> None:
        """Announce that those of the blocks that were evictable no longer are."""
        known = [block_id for block_id in block_ids if block_id in self.evictable]
        if known:
            self.evictable.difference_update(known)
            with self._boundary("not_evictable"):
                self._policy.not_evictable(known)

    def removed(self, block_ids: Sequence[int]) -> None:
        """Announce that those of the blocks that were evictable are gone."""
        known = [block_id for block_id in block_ids if block_id in self.evictable]
        if known:
            self.evictable.difference_update(known)
            with self._boundary("removed"):
                self._policy.removed(known)

    def touched(self, entries: Sequence[Entry]) -> None:
        """Announce prefix hits, to a policy that listens."""
        if entries and self._wants_touched:
            with self._boundary("touched"):
                self._policy.touched(self._facts(entries))

    def victims(self, count: int) -> list[int]:
        """Ask for at most ``count`` blocks; at least one comes back.

        Raises:
            EvictionError: if the answer is empty, too long, repeats a block or names one that was not offered.
        """
        with self._boundary("victims"):
            answer = self._policy.victims(count)
        try:
            chosen = [operator.index(block_id) for block_id in answer]
        except TypeError as error:
            raise self._error(f"answered {answer!r}, which is not a sequence of block ids") from error
        if not chosen:
            raise self._error(f"chose nothing although {len(self.evictable)} blocks are evictable")
        if len(chosen) > count:
            raise self._error(f"chose {len(chosen)} blocks, more than were asked for")
        if len(set(chosen)) < len(chosen):
            raise self._error(f"chose a block twice: {chosen}")
        for block_id in chosen:
            if block_id not in self.evictable:
                raise self._error(f"chose block {block_id}, which is not evictable")
        return chosen

    def _error(self, fault: str) -> EvictionError:
        return EvictionError(
            f'eviction policy "{self._name}" {fault}; victims(count) must return 1 to count different blocks among '
            'those announced as evictable (choose another policy, such as "lru", or correct it)'
        )
