"""How the draft model's tokens are chosen, and when its own doubt ends a draft."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.api import Drafts, ProposeBatch

__all__ = ["ChainBuilder", "Rule"]


class Rule:
    """The choice of a token from the draft model's logits.

    Args:
        coupled: By the verifier's own rule and noise, which the target follows most often; else the likeliest token.
        min_confidence: A draft ends with the first token to which the draft model gives less; 0 = never.
    """

    def __init__(self, coupled: bool, min_confidence: float) -> None:
        self.coupled = coupled
        self.min_confidence = min_confidence

    def choose(self, batch: ProposeBatch, logits: Any, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """int64 ``[rows]``.

        Args:
            batch: The batch.
            logits: float32 ``[rows, ids]``; ``-inf`` where a token cannot be drafted.
            rows: int64 ``[rows]``, their requests.
            positions: int64 ``[requests]``, positions of the tokens to be chosen.
        """
        if not self.coupled:
            return np.array(logits.argmax(-1).tolist(), dtype=np.int64)
        if len(rows) < len(positions):  # the rule is for the whole batch
            row_logits, logits = logits, logits.new_zeros((len(positions), logits.shape[1]))
            logits[rows] = row_logits
        chosen: np.ndarray = np.array(batch.choose(logits, positions).tolist(), dtype=np.int64)[rows]
        return chosen

    def confidence(self, logits: Any, tokens: np.ndarray) -> np.ndarray:
        """The draft model's own probability of tokens int64 ``[rows]``, float64 ``[rows]``; ones if nobody asks."""
        if not self.min_confidence:
            return np.ones(len(tokens))
        return np.array(logits.softmax(-1)[np.arange(len(tokens)), tokens].tolist(), dtype=np.float64)


class ChainBuilder:
    """Chains of a batch, one position after another.

    The token that falls below the confidence asked for is kept: a verifier that tests ratios of probabilities would be
    biased by drafts that end before a token because of what that token is.

    Args:
        batch: The batch.
        rule: How tokens are chosen.
        draftable: bool ``[ids]``, which can be drafted; ``None`` = all. Where the rule leaves none, a chain ends.

    Attributes:
        active: bool ``[requests]``, whose chains may grow.
        tokens: int64 ``[requests, width]``, padded with -1.
        lengths: int64 ``[requests]``.
    """

    def __init__(self, batch: ProposeBatch, rule: Rule, draftable: np.ndarray | None = None) -> None:
        self._batch = batch
        self._rule = rule
        self._draftable = draftable
        self.width = int(batch.budgets.max(initial=0))
        self.active: np.ndarray = batch.budgets > 0
        self.lengths = np.zeros(len(batch.budgets), dtype=np.int64)
        self.tokens = np.full((len(batch.budgets), self.width), -1, dtype=np.int64)
        self._confidence = np.zeros(self.tokens.shape)

    def extend(self, depth: int, rows: np.ndarray, logits: Any) -> None:
        """Choose the tokens at ``depth`` for the requests ``rows``; the chains of all others have ended."""
        chosen = self._rule.choose(self._batch, logits, rows, self._batch.positions + 1 + depth)
        confidence = self._rule.confidence(logits, chosen)
        is_possible = np.ones(len(rows), dtype=bool) if self._draftable is None else self._draftable[chosen]
        kept = rows[is_possible]
        self.tokens[kept, depth] = chosen[is_possible]
        self._confidence[kept, depth] = confidence[is_possible]
        self.lengths[kept] = depth + 1
        self.active[:] = False
        self.active[rows[is_possible & (confidence >= self._rule.min_confidence)]] = True
        self.active &= self._batch.budgets > depth + 1

    def drafts(self) -> Drafts:
        """What was built; with confidences if the rule has a bound for them."""
        confidence = self._confidence if self._rule.min_confidence else None
        return Drafts(tokens=self.tokens, lengths=self.lengths, confidence=confidence)
