"""The text of one output as it grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.engine.detokenize import Detokenizer, StopMatcher

__all__ = ["OutputText"]


class OutputText:
    """Whole characters, up to the first stop string.

    Args:
        decode: ``token ids -> text``.
        stops: Strings that end the output.
        includes_stop: Whether the stop string is kept.
        min_tokens: Stop strings count from the token of this number on.

    Attributes:
        text: What is known so far.
        stop: The stop string that was found.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: Sequence[str], includes_stop: bool, min_tokens: int
    ) -> None:
        self.text = ""
        self.stop: str | None = None
        self._detokenizer = Detokenizer(decode)
        self._matcher = StopMatcher(stops)
        self._includes_stop = includes_stop
        self._num_tokens_before_stops = min_tokens
        self._num_shown = 0
        self._is_whole = False

    def extend(self, token_ids: Sequence[int]) -> int | None:
        """Add tokens until one completes a stop string; return how many that took, ``None`` if none did."""
        for count, token_id in enumerate(token_ids, 1):
            new = self._detokenizer.append(token_id)
            self.text += new
            self._num_tokens_before_stops -= 1
            if new and self._num_tokens_before_stops <= 0 and self._cut_at_stop(len(new)):
                return count
        return None

    def _cut_at_stop(self, num_new: int) -> bool:
        found = self._matcher.find(self.text, num_new)
        if found is None:
            return False
        at, self.stop = found
        self.text = self.text[: at + len(self.stop) * self._includes_stop]
        self._is_whole = True
        return True

    def finish(self) -> None:
        """No token comes any more: what waits is text, complete or not."""
        if not self._is_whole:
            self._is_whole = True
            self.text += self._detokenizer.flush()

    def take_new(self) -> str:
        """Text that may be shown and was not taken yet; what may become a stop string waits."""
        end = len(self.text) if self._is_whole else len(self.text) - self._matcher.num_held(self.text)
        new = self.text[self._num_shown : end]
        self._num_shown = max(end, self._num_shown)
        return new
