"""An index of one request's n-grams that grows token by token."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["NgramIndex"]

ROOT = 0


class NgramIndex:
    """Finds the longest earlier occurrence of a sequence's end, of equally long ones the most recent.

    A trie over contexts read backwards. Each append walks down its own context and stops at the first n-gram never
    seen before: at most ``max_match`` dictionary probes, however long the sequence. A node seen once has no
    children; its only occurrence moves one level down when the node is met again.

    Attributes:
        tokens: The tokens appended so far.
        match_length: Length of the longest n-gram, up to ``max_match``, that ends ``tokens`` and was seen before.
        match_end: Index of the token that followed its most recent earlier occurrence.
    """

    __slots__ = ("_children", "_is_inner", "_last_end", "_max_match", "match_end", "match_length", "tokens")

    def __init__(self, max_match: int) -> None:
        self.tokens: list[int] = []
        self.match_length = 0
        self.match_end = 0
        self._max_match = max_match
        self._children: dict[int, int] = {}  # node << 32 | token -> node
        self._last_end = [0]
        self._is_inner = bytearray(b"\x01")

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens: O(max_match) each at worst, in general O(1 + length of the match)."""
        for token in tokens:
            self.tokens.append(token)
            self._insert()

    def common_length(self, limit: int) -> int:
        """Tokens before ``match_end`` that equal the end of the sequence, counted up to ``limit``."""
        length, period = min(self.match_length, limit), len(self.tokens) - self.match_end
        while length < min(limit, self.match_end) and self.tokens[-1 - length] == self.tokens[-1 - length - period]:
            length += 1
        return length

    def continuation(self, num_tokens: int) -> list[int]:
        """What followed the match; past the end of the sequence it goes on with the period of the match."""
        period = len(self.tokens) - self.match_end
        return [self.tokens[self.match_end + offset % period] for offset in range(num_tokens)]

    def _insert(self) -> None:
        end, node, length, match_end = len(self.tokens), ROOT, 0, 0
        while length < min(self._max_match, end):
            key = node << 32 | self.tokens[end - 1 - length]
            child = self._children.get(key)
            if child is None:
                self._add(key, end)
                break
            node, length, match_end = child, length + 1, self._last_end[child]
            if not self._is_inner[node]:
                self._push_down(node, length)
            self._last_end[node] = end
        self.match_length, self.match_end = length, match_end

    def _push_down(self, node: int, length: int) -> None:
        self._is_inner[node] = 1
        end = self._last_end[node]
        if length < min(self._max_match, end):
            self._add(node << 32 | self.tokens[end - 1 - length], end)

    def _add(self, key: int, end: int) -> None:
        self._children[key] = len(self._last_end)
        self._last_end.append(end)
        self._is_inner.append(0)
