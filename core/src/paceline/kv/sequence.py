"""What the manager knows of one request, and what it says of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.kv.chain import KeyChain
from paceline.kv.index import Entry

__all__ = ["CacheStats", "LiveSequence", "PrefixHit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHit:
    """What the cache holds of a request's tokens.

    Attributes:
        num_tokens: Leading tokens that need not be computed; the last token always is.
        num_kv_tokens: Leading tokens whose target KV is there. It is ``num_tokens``, or one more when all tokens are
            cached: the last one is then computed with its KV write suppressed.
        components: For each draft group, leading tokens whose draft KV is there, at most ``num_kv_tokens``.
        num_blocks: Blocks of the hit.
        num_idle_blocks: Of them, those that no request uses: admission takes them from ``num_free``.
        row: Row of the block table, once admitted.
    """

    num_tokens: int
    num_kv_tokens: int
    components: dict[str, int]
    num_blocks: int
    num_idle_blocks: int
    row: int | None = None


@dataclass(slots=True)
class CacheStats:
    """Tokens of admitted requests, and how many of them were found in the cache."""

    queries: int = 0
    hits: int = 0


@dataclass(slots=True)
class LiveSequence:
    """An admitted request.

    Attributes:
        row: Its row in the block table.
        chain: Keys of its full blocks.
        block_ids: Its table.
        num_published: Leading blocks whose keys are resident, in this block or in a twin.
        tail: Entry of the last of them.
        may_publish: Cleared by a reset: KV from before it must not be found after it.
    """

    row: int
    chain: KeyChain
    block_ids: list[int] = field(default_factory=list)
    num_published: int = 0
    tail: Entry | None = None
    may_publish: bool = True
