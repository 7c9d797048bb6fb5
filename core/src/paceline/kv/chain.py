"""The key chain of one request, hashed once per block."""

from __future__ import annotations

import numpy as np

from paceline.api.facts import RequestFacts
from paceline.kv.identity import IdentityBuilder

__all__ = ["KeyChain"]


class KeyChain:
    """Keys of a request's full blocks, made as they are asked for; each token is hashed once.

    Args:
        identity: Gives the root and the keys.
        request: Whose identity it is; its contributors' fields are read here.
        block_size: Tokens per block.
    """

    __slots__ = ("_block_size", "_identity", "_keys", "_root", "_token_bytes", "request")

    def __init__(self, identity: IdentityBuilder, request: RequestFacts, block_size: int) -> None:
        self.request = request
        self._identity = identity
        self._block_size = block_size
        self._root = identity.root(request)
        self._keys: list[bytes] = []
        self._token_bytes = bytearray()

    def key(self, depth: int, tokens: np.ndarray) -> bytes:
        """Key of block ``depth``; ``tokens`` int64 ``[at least (depth + 1) * block_size]``."""
        while len(self._keys) <= depth:
            start = len(self._keys) * self._block_size
            block = tokens[start : start + self._block_size]
            assert len(block) == self._block_size, f"block {len(self._keys)} has {len(block)} tokens"
            parent = self._keys[-1] if self._keys else self._root
            self._keys.append(self._identity.key(parent, self.request, block, start))
            self._token_bytes += block.tobytes()
        return self._keys[depth]

    def parent_key(self, depth: int) -> bytes:
        """Key of the block before block ``depth``; the root before the first. Its key must have been asked for."""
        return self._keys[depth - 1] if depth else self._root

    def serves(self, request: RequestFacts, tokens: np.ndarray) -> bool:
        """Whether this is the same request object, and all that was hashed is the head of these tokens."""
        num_hashed = len(self._keys) * self._block_size
        return request is self.request and tokens[:num_hashed].tobytes() == self._token_bytes
