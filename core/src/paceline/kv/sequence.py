"""What the manager knows of one request, and what it says of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.kv.chain import KeyChain
from paceline.kv.heads import Place
from paceline.kv.index import Entry
from paceline.kv.retention import NO_RETENTION, Retention

__all__ = ["CacheStats", "LiveSequence", "PrefixHit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHit:
    """What the cache holds of a request's tokens.

    Attributes:
        num_tokens: Leading tokens that need not be computed; the last known token always is.
        num_kv_tokens: Leading tokens whose target KV is there. It is ``num_tokens``, or one more when all tokens are
            cached: the last one is then computed with its KV write suppressed.
        components: For each draft group, leading tokens whose draft KV is there, at most ``num_kv_tokens``.
        block_ids: Shared blocks of the hit; all are full.
        num_idle_blocks: Of them, those that no request uses: admission takes them from ``num_free``.
        num_copied_tokens: Tokens at the end of the hit that are copied from a block that matches in part.
        num_idle_sources: 1 if no request uses that block: until it is copied, it is taken from ``num_free`` as well.
        row: Row of the block table, once admitted.
    """

    num_tokens: int
    num_kv_tokens: int
    components: dict[str, int]
    block_ids: tuple[int, ...]
    num_idle_blocks: int
    num_copied_tokens: int
    num_idle_sources: int
    row: int | None = None

    @property
    def num_blocks(self) -> int:
        """Shared blocks of the hit."""
        return len(self.block_ids)


@dataclass(slots=True)
class CacheStats:
    """Tokens of admitted requests, and how many of them were found in the cache."""

    queries: int = 0
    hits: int = 0


@dataclass(slots=True, eq=False)
class LiveSequence:
    """An admitted request.

    The blocks that it has filled may be shared; from block ``num_computed // block_size`` on, they are its own.

    Attributes:
        row: Its row in the block table.
        chain: Keys of its full blocks.
        block_ids: Its table.
        num_computed: Leading tokens whose target KV is true, or will be when the copy that it is owed is made.
        num_published: Leading blocks whose keys are resident, in this block or in a twin.
        tail: Entry of the last of them.
        place: Where its first unpublished block is found by its head, once that holds committed tokens.
        may_publish: Cleared by a reset: KV from before it must not be found after it.
        retention: What it asks of the cache for the blocks that it fills or shares.
    """

    row: int
    chain: KeyChain
    block_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_published: int = 0
    tail: Entry | None = None
    place: Place | None = None
    may_publish: bool = True
    retention: Retention = NO_RETENTION

    @classmethod
    def start(cls, hit: PrefixHit, chain: KeyChain, tail: Entry | None, retention: Retention) -> LiveSequence:
        """A request that was admitted with this hit; ``tail`` is the entry of its last shared block."""
        assert hit.row is not None
        return cls(hit.row, chain, list(hit.block_ids), hit.num_kv_tokens, hit.num_blocks, tail, retention=retention)
