"""One request's way through its grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher

from paceline_llguidance.vocabulary import Vocabulary

__all__ = ["GrammarWalk", "Row"]

Drafted = tuple[int, ...]

DEAD_END = (
    "no token can come next, or only such as end the request; leave text out of stop_token_ids, and ask for what can "
    "be completed and the tokenizer can spell"
)


class Row(NamedTuple):
    """What may come next: uint8 ``[num_bytes]``, and why nothing may although the grammar has not ended, or ``""``."""

    mask: np.ndarray
    failure: str = ""


class GrammarWalk:
    """Answers for one request what may come after its output and any drafted tokens.

    All of it can be computed anew from the output. What is kept is where the matcher stands, and the rows asked for
    since the output last grew: a row tells whether a drafted token, or the next one emitted, was allowed.

    Copies of a matcher share their lexer, and one that gives up spoils it for all. So a row that fails is computed
    again with a grammar compiled for this walk alone: then it failed for its own history.
    """

    def __init__(
        self,
        grammar: LLMatcher,
        vocabulary: Vocabulary,
        end_token_ids: tuple[int, ...],
        compile_anew: Callable[[], LLMatcher],
    ) -> None:
        """Stand at the start.

        Args:
            grammar: A matcher at its start; it is copied and stays there.
            vocabulary: The target's.
            end_token_ids: Ids that end the request; what the grammar says of them is ignored.
            compile_anew: Returns the same grammar, shared with nobody.
        """
        self.end_token_ids = end_token_ids
        self._grammar, self._vocabulary, self._compile_anew = grammar, vocabulary, compile_anew
        self._ends = vocabulary.mask_of(end_token_ids)
        self._nothing = np.zeros(vocabulary.num_bytes, dtype=np.uint8)
        self._output = np.zeros(0, dtype=np.int64)
        self._consumed: list[int] = []  # the output, as far as it was allowed
        self._rows: dict[Drafted, Row] = {}
        self._matcher = grammar.deep_copy()
        self._ahead: Drafted = ()  # what the matcher consumed beyond the output

    def follow(self, output: np.ndarray) -> None:
        """Stand after ``output``, int64 ``[num_output_tokens]``: costs a mask per token that is new or was changed."""
        num_known = len(self._output)
        if not np.array_equal(output[:num_known], self._output):
            num_known = 0
            self._consumed, self._rows = [], {}
            self._rewind()
        for token in output[num_known:].tolist():
            self._step(token)
        self._output = output.copy()

    def row(self, drafted: Drafted) -> Row:
        """Return what may come after the output and ``drafted``."""
        for size in range(len(drafted) + 1):
            if drafted[:size] not in self._rows:
                self._rows[drafted[:size]] = self._compute(drafted[:size])
        return self._rows[drafted]

    def _step(self, token: int) -> None:
        if self.row((token,)).mask.any():
            self._move((token,))
            self._consumed.append(token)
            self._ahead = ()
        self._rows = {drafted[1:]: row for drafted, row in self._rows.items() if drafted[:1] == (token,)}

    def _compute(self, drafted: Drafted) -> Row:
        if drafted:
            before = self._rows[drafted[:-1]]
            if not _has(before.mask, drafted[-1]) or drafted[-1] in self.end_token_ids:
                return Row(self._nothing, before.failure)
        row = self._ask(drafted)
        if row.failure:
            self._grammar = self._compile_anew()
            self._rewind()
            row = self._ask(drafted)
        return row

    def _ask(self, drafted: Drafted) -> Row:
        self._move(drafted)
        mask, may_end = self._vocabulary.split(self._matcher.compute_bitmask())
        if self._matcher.is_error():  # the mask of a matcher in error says that the grammar may end
            return Row(self._nothing, _why(self._matcher.get_error()))
        mask = mask & ~self._ends | (self._ends if may_end else 0)
        return Row(mask, "" if mask.any() else DEAD_END)

    def _move(self, drafted: Drafted) -> None:
        num_kept = _common_length(self._ahead, drafted)
        num_dropped = len(self._ahead) - num_kept
        if num_dropped and not self._matcher.rollback(num_dropped):
            self._rewind()  # a matcher in error never rolls back, and some Lark grammars do not either
            num_kept = 0
        self._matcher.consume_tokens(list(drafted[num_kept:]))
        self._ahead = drafted

    def _rewind(self) -> None:
        self._matcher = self._grammar.deep_copy()
        self._matcher.consume_tokens(self._consumed)
        self._ahead = ()


def _why(error: str) -> str:
    if error.startswith("NoExtension"):
        return DEAD_END
    return f"llguidance gives up: {error.splitlines()[0]}; bound its repetitions, or ask for less"


def _has(mask: np.ndarray, token: int) -> bool:
    return 0 <= token < 8 * len(mask) and bool(mask[token >> 3] >> (token & 7) & 1)


def _common_length(left: Drafted, right: Drafted) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(left), len(right)))
