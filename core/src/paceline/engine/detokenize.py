"""Tokens to text while they come: whole characters only, stop strings held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Detokenizer", "StopMatcher"]

_REPLACEMENT = "\ufffd"
_LONGEST_CHARACTER = 4  # bytes of UTF-8, and so tokens


class Detokenizer:
    """Appends tokens and gives the text that they complete.

    The end of the tokens is decoded together with the ones before it, since a token's text may depend on its left
    neighbour. A tail that decodes to U+FFFD may be part of a character: it waits, but no longer than a character can
    be, so invalid bytes do not stall.

    Args:
        decode: ``token ids -> text``.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._token_ids: list[int] = []
        self._context = 0  # tokens before it no longer matter
        self._read = 0  # tokens before it are in the text

    def append(self, token_id: int) -> str:
        """Add a token; return the text that became certain, often ``""``."""
        self._token_ids.append(token_id)
        end = len(self._token_ids)
        text = self._text_up_to(end)
        if not text.endswith(_REPLACEMENT):
            return self._take(text, end)
        if end - self._read > _LONGEST_CHARACTER:
            end -= _LONGEST_CHARACTER - 1
            return self._take(self._text_up_to(end), end)
        return ""

    def flush(self) -> str:
        """Return what still waits, complete or not; nothing is appended after it."""
        return self._take(self._text_up_to(len(self._token_ids)), len(self._token_ids))

    def _text_up_to(self, end: int) -> str:
        known = len(self._decode(self._token_ids[self._context : self._read]))
        return self._decode(self._token_ids[self._context : end])[known:]

    def _take(self, text: str, end: int) -> str:
        self._context, self._read = self._read, end
        return text


class StopMatcher:
    """Finds stop strings in text that comes in pieces.

    Args:
        stops: The strings; none is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._overlap = max(map(len, stops), default=1) - 1

    def find(self, text: str, num_new: int) -> tuple[int, str] | None:
        """Position and string of the first stop in ``text`` of which a part is among the last ``num_new`` characters.

        Of several that begin at one place the longest is meant.
        """
        start = max(len(text) - num_new - self._overlap, 0)
        found = [(at, -len(stop), stop) for stop in self._stops if (at := text.find(stop, start)) >= 0]
        return (min(found)[0], min(found)[2]) if found else None

    def num_held(self, text: str) -> int:
        """Length of the longest end of ``text`` that a stop string begins with: it must not be shown yet."""
        for length in range(min(self._overlap, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
