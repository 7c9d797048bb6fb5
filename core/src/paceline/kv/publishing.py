"""Making the blocks that a request fills known to others, and the head of the one that it is filling."""

from __future__ import annotations

import numpy as np

from paceline.kv.cache import BlockCache
from paceline.kv.sequence import LiveSequence

__all__ = ["Publisher"]


class Publisher:
    """Publishes full blocks under their keys, and offers the block after them by its head.

    Args:
        cache: The blocks.
        block_size: Tokens per block.
        offers_heads: Whether blocks may be shared in part.
    """

    def __init__(self, cache: BlockCache, block_size: int, offers_heads: bool) -> None:
        self._cache = cache
        self._block_size = block_size
        self._offers_heads = offers_heads

    def advance(self, sequence: LiveSequence, tokens: np.ndarray) -> None:
        """Bring what is known of a request up to its computed tokens; ``tokens`` int64, at least those."""
        for depth in range(sequence.num_published, sequence.num_computed // self._block_size):
            self._publish(sequence, depth, tokens)
        if self._offers_heads:
            self._offer_head(sequence, tokens)

    def _publish(self, sequence: LiveSequence, depth: int, tokens: np.ndarray) -> None:
        content = tokens[depth * self._block_size : (depth + 1) * self._block_size]
        key = sequence.chain.key(depth, tokens)
        place = (sequence.chain.parent_key(depth), int(content[0]))
        domain = sequence.chain.request.trust_domain
        sequence.tail = self._cache.publish(sequence.block_ids[depth], key, sequence.tail, place, content, domain)
        sequence.num_published += 1

    def _offer_head(self, sequence: LiveSequence, tokens: np.ndarray) -> None:
        head = tokens[sequence.num_published * self._block_size : sequence.num_computed]
        place = (sequence.chain.parent_key(sequence.num_published), int(head[0])) if len(head) else None
        if place != sequence.place:
            self.withdraw(sequence)
        if place is not None:
            self._cache.index.heads.put(place, sequence, head)
        sequence.place = place

    def withdraw(self, sequence: LiveSequence) -> None:
        """Offer no head of this request any more."""
        if sequence.place is not None:
            self._cache.index.heads.discard(sequence.place, sequence)
            sequence.place = None
