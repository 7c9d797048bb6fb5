"""What the cache holds of a prompt: whole blocks first, then the head of one more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.api.facts import RequestFacts
from paceline.kv.cache import BlockCache
from paceline.kv.chain import KeyChain
from paceline.kv.components import DraftComponents
from paceline.kv.identity import IdentityBuilder
from paceline.kv.index import Entry
from paceline.kv.sequence import LiveSequence, PrefixHit

__all__ = ["Match", "PartialBlock", "PrefixMatcher"]


@dataclass(frozen=True, slots=True)
class PartialBlock:
    """A block whose head is to be copied.

    Attributes:
        block_id: The block.
        num_tokens: Its leading tokens that match.
        is_idle: Whether no request uses it.
        components: For each draft group, how many of these tokens have their draft KV there.
    """

    block_id: int
    num_tokens: int
    is_idle: bool
    components: dict[str, int]


@dataclass(frozen=True, slots=True)
class Match:
    """The keys of a request, entries of whole blocks, and the block after them that matches in part."""

    chain: KeyChain
    entries: list[Entry]
    partial: PartialBlock | None


class PrefixMatcher:
    """Finds what a request may share. Changes nothing.

    A block may be shared in part if nothing but its tokens shaped it: with fields for single blocks in the identity,
    equal tokens do not mean equal KV, and only whole blocks are matched.

    Args:
        cache: The blocks.
        components: Their draft components.
        identity: Makes the keys.
        block_size: Tokens per block.
        enabled: Whether anything is found.
    """

    def __init__(
        self,
        cache: BlockCache,
        components: DraftComponents,
        identity: IdentityBuilder,
        block_size: int,
        enabled: bool,
    ) -> None:
        self._cache = cache
        self._components = components
        self._block_size = block_size
        self._identity = identity
        self._enabled = enabled
        self._shares_heads = not identity.has_block_fields
        self._last_chain: KeyChain | None = None

    def match(self, request: RequestFacts, tokens: np.ndarray, read_cache: bool) -> Match:
        """The longest match of ``tokens`` (int64, at least 1); none without ``read_cache``."""
        chain = self._chain(request, tokens)
        if not (self._enabled and read_cache):
            return Match(chain, [], None)
        entries: list[Entry] = []
        for depth in range(len(tokens) // self._block_size):
            entry = self._cache.index.get(chain.key(depth, tokens))
            if entry is None:
                break
            entries.append(entry)
        return Match(chain, entries, self._partial(chain, tokens, entries) if self._shares_heads else None)

    def _chain(self, request: RequestFacts, tokens: np.ndarray) -> KeyChain:
        # A waiting request is looked up again and again; its tokens are hashed once.
        last = self._last_chain
        if last is None or not last.serves(request, tokens):
            last = self._last_chain = KeyChain(self._identity, request, self._block_size)
        return last

    def _partial(self, chain: KeyChain, tokens: np.ndarray, entries: list[Entry]) -> PartialBlock | None:
        start = len(entries) * self._block_size
        found = self._cache.index.heads.longest(
            chain.parent_key(len(entries)), tokens[start : start + self._block_size]
        )
        if found is None:
            return None
        owner, num_tokens = found
        if isinstance(owner, LiveSequence):
            components = self._components.of_row(owner.row, start, num_tokens)
            return PartialBlock(owner.block_ids[owner.num_published], num_tokens, False, components)
        is_idle = self._cache.is_idle(owner)
        if is_idle and not self._fits_beside_source(len(tokens), entries):
            return None
        components = self._components.of_block(owner.block_id, num_tokens)
        return PartialBlock(owner.block_id, num_tokens, is_idle, components)

    def _fits_beside_source(self, num_tokens: int, entries: list[Entry]) -> bool:
        """A copy must never be what keeps a request out: its source is left alone where its block is needed."""
        num_missing = -(-num_tokens // self._block_size) - len(entries)
        return num_missing + sum(map(self._cache.is_idle, entries)) + 1 <= self._cache.num_free

    def hit(self, match: Match, num_tokens: int, row: int | None = None) -> PrefixHit:
        """What a match means for a request of ``num_tokens`` known tokens."""
        partial, entries = match.partial, match.entries
        num_copied = partial.num_tokens if partial else 0
        num_full = len(entries) * self._block_size
        return PrefixHit(
            num_tokens=max(0, min(num_full + num_copied, num_tokens - 1)),
            num_kv_tokens=num_full + num_copied,
            components=self._components.hits(entries, partial.components if partial else {}),
            block_ids=tuple(entry.block_id for entry in entries),
            num_idle_blocks=sum(map(self._cache.is_idle, entries)),
            num_copied_tokens=num_copied,
            num_idle_sources=int(partial is not None and partial.is_idle),
            row=row,
        )
