"""From one tokenizer to another by way of text, piece by piece as the text grows."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from paceline.api import PluginError
from paceline_draft_model.token_text import TokenizerKind, read_tokens, tokenizer_kind

__all__ = ["GrowingText", "TextTokenizer", "decoded"]

# A tail of more than so many tokens is fixed but for its last ones, whose tokens may still change with what follows.
_LONGEST_TAIL = 128
_NUM_LOOSE = 32
_PROBE = "b c"


class TextTokenizer:
    """A tokenizer as a map between bytes and ids, in the middle of a text as well as at its start.

    Args:
        name: Whose it is, for messages.
        tokenizer: The tokenizer; only read.
        vocab_size: Ids beyond it are never given.

    Attributes:
        special: Ids that control rather than add text.

    Raises:
        PluginError: if its tokens do not add up to a text.
    """

    def __init__(self, name: str, tokenizer: Any, vocab_size: int) -> None:
        if tokenizer_kind(tokenizer) is TokenizerKind.LITERAL:
            raise PluginError(
                'vocabulary="text" needs tokenizers whose tokens add up to the text (byte-level or sentencepiece), and '
                f'that of "{name}" is neither; choose another draft model, or set vocabulary="intersect"'
            )
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        tokens = read_tokens(tokenizer)
        self._content = {token_id: token.content for token_id, token in tokens.items()}
        self.special = {token_id for token_id, token in tokens.items() if token.is_special}
        self._anchor = next((anchor for anchor in ("", "\n", "a") if self._continues(anchor)), "")
        self._puts_space = b"".join(self.contents(self._plain(_PROBE))).startswith(b" ")

    def _continues(self, anchor: str) -> bool:
        self._anchor = anchor
        return b"".join(self.contents(self.encode(_PROBE))) == _PROBE.encode()

    def contents(self, ids: Iterable[int]) -> list[bytes]:
        """What each id adds to a text."""
        return [self._content.get(token_id, b"") for token_id in ids]

    def written(self, ids: Iterable[int], is_start: bool) -> list[bytes]:
        """``contents``, at the start of a text without the space that the tokenizer puts there."""
        contents = self.contents(ids)
        if is_start and self._puts_space and contents:
            contents[0] = contents[0].removeprefix(b" ")
        return contents

    def encode(self, text: str, is_start: bool = False) -> list[int]:
        """Ids of a text, or of one that goes on from another: without the space that some put before every text."""
        if is_start or not self._anchor:
            return self._plain(text)
        head, whole = self._plain(self._anchor), self._plain(self._anchor + text)
        return whole[len(head) :] if whole[: len(head)] == head else self._plain(text)

    def _plain(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        return [token_id for token_id in ids if token_id < self._vocab_size]


def decoded(content: bytes) -> tuple[str, bool]:
    """Bytes as text without a character that has only begun, and whether there is none such."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(content), not decoder.getstate()[0]


class GrowingText:
    """A request's text in another model's tokens, while the target's tokens become more.

    Only a tail is tokenised again when the text has grown. What lies well before its end is fixed where tokens of both
    end at the same byte, so the cost of a step does not grow with the text.

    Args:
        source: The target's tokenizer.
        own: The other model's.
        start: Tokens that the other model expects before every text.
        skipped: Tokens of the target that are left out where they begin the text, at most one.
    """

    def __init__(self, source: TextTokenizer, own: TextTokenizer, start: list[int], skipped: list[int]) -> None:
        self._source = source
        self._own = own
        self._fixed = list(start)
        self._skipped = skipped
        self._num_fixed_source = 0
        self._is_start = True

    def tokens(self, source_ids: np.ndarray) -> tuple[np.ndarray, bool]:
        """int64 ``[n]`` for all of the target's tokens, which begin as in the last call; and whether the text ends
        with a whole character, without which nothing can be drafted behind it."""
        if self._num_fixed_source == 0 and source_ids[:1].tolist() == self._skipped:
            self._num_fixed_source = len(self._skipped)
        contents = self._source.written(source_ids[self._num_fixed_source :].tolist(), self._is_start)
        text, is_whole = decoded(b"".join(contents))
        ids = self._own.encode(text, self._is_start)
        if len(contents) > _LONGEST_TAIL:
            ids = self._fix(contents, ids)
        return np.array(self._fixed + ids, dtype=np.int64), is_whole

    def _fix(self, contents: list[bytes], ids: list[int]) -> list[int]:
        """Fix the beginning of a tail; return what is left of its ids."""
        own_contents = self._own.written(ids, self._is_start)
        if not b"".join(contents).startswith(b"".join(own_contents)):
            return ids  # the tokenizer writes some of it otherwise
        source_ends = {end: count for count, end in enumerate(itertools.accumulate(map(len, contents)), 1)}
        own_ends = list(itertools.accumulate(map(len, own_contents)))[:-_NUM_LOOSE]
        common = [count for count, end in enumerate(own_ends, 1) if end in source_ends]
        if not common:
            return ids
        num_fixed = common[-1]
        self._fixed += ids[:num_fixed]
        self._num_fixed_source += source_ends[own_ends[num_fixed - 1]]
        self._is_start = False
        return ids[num_fixed:]
