"""Retention: how long a request wishes its blocks to stay; eviction policies are told."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["NO_RETENTION", "NO_TERM", "Retention", "RetentionTerm"]


@dataclass(frozen=True, slots=True)
class Retention:
    """What a request asks for the blocks that it fills or shares.

    Attributes:
        priority: The higher, the longer they should stay; 0 = nothing is asked for.
        duration_s: Seconds after the request's last use of them for which it holds; ``None`` = for ever.
    """

    priority: int = 0
    duration_s: float | None = None

    def term(self, now_s: float) -> RetentionTerm:
        """What it means for blocks that the request lets go of now."""
        return RetentionTerm(self.priority, None if self.duration_s is None else now_s + self.duration_s)


NO_RETENTION = Retention()


@dataclass(frozen=True, slots=True)
class RetentionTerm:
    """What holds for a block.

    Attributes:
        priority: 0 = none.
        expiry_s: Engine clock until which it holds, or ``None``.
    """

    priority: int = 0
    expiry_s: float | None = None

    def merged(self, other: RetentionTerm, now_s: float) -> RetentionTerm:
        """The stronger of this and a new one: the higher priority, then the later expiry; what has expired is none."""
        return max(self, other, key=lambda term: term._strength(now_s))

    def _strength(self, now_s: float) -> tuple[int, float]:
        expiry_s = math.inf if self.expiry_s is None else self.expiry_s
        return (self.priority, expiry_s) if expiry_s > now_s else (0, -math.inf)


NO_TERM = RetentionTerm()
