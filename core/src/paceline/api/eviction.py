"""Eviction policies: they choose, the core evicts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.api.specs import Spec

__all__ = ["BlockFacts", "EvictionCapabilities", "EvictionContext", "EvictionPolicy", "EvictionPolicySpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFacts:
    """A full cached block that no request uses and that has no resident child.

    Attributes:
        block_id: Index in the pool.
        key: 32-byte content key.
        depth: Number of blocks before it in its chain.
        hits: Prefix hits on it since it was made.
        last_use_s: Engine clock of its last use, in seconds.
        created_s: Engine clock of its making, in seconds.
        num_tokens: Tokens it holds.
        recompute_cost: Relative cost of making it again (tokens weighted by the depth they attend to).
        trust_domain: Domain of the request that made it.
        retention_priority: Priority asked for by the request; 0 = none.
        retention_expiry_s: Engine clock until which it holds, or ``None``.
        tiers: Names of the tiers that also hold it.
    """

    block_id: int
    key: bytes
    depth: int
    hits: int
    last_use_s: float
    created_s: float
    num_tokens: int
    recompute_cost: float
    trust_domain: str
    retention_priority: int = 0
    retention_expiry_s: float | None = None
    tiers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionCapabilities:
    """What a policy gives; nothing is negotiated yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionContext:
    """What a policy is built with.

    Attributes:
        clock: The engine's clock, in seconds.
        num_blocks: Size of the pool.
    """

    clock: Callable[[], float]
    num_blocks: int


class EvictionPolicy(ABC):
    """Chooses which evictable blocks go. It sees events in the order in which they happen."""

    @abstractmethod
    def evictable(self, blocks: Sequence[BlockFacts]) -> None:
        """These blocks may be chosen from now on."""

    @abstractmethod
    def not_evictable(self, block_ids: Sequence[int]) -> None:
        """These were evictable and are in use again, or have got a child."""

    def touched(self, blocks: Sequence[BlockFacts]) -> None:  # noqa: B027
        """These blocks served a prefix hit (they may or may not be evictable)."""

    @abstractmethod
    def removed(self, block_ids: Sequence[int]) -> None:
        """These blocks are gone: evicted, or the cache was reset."""

    @abstractmethod
    def victims(self, count: int) -> Sequence[int]:
        """Return up to ``count`` evictable block ids, the first to go first. Changes nothing.

        The core evicts them, announces parents that became evictable, and asks again until it has enough.
        """


EvictionPolicySpec = Spec[EvictionCapabilities, EvictionContext, EvictionPolicy]
