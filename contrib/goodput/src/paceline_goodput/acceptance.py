"""How many drafted tokens are delivered and accepted: of all requests together, and how each one differs."""

from __future__ import annotations

import numpy as np

from paceline_goodput.requests import RequestTable

__all__ = ["Acceptance", "kinds_of_lengths", "longest_of_kinds"]

FIRST_CHANCE = 0.7
"""Before anything is known: the chance of a token whose predecessors were accepted."""
CHANCE_WEIGHT, KIND_WEIGHT = 2.0, 4.0
"""What a prior counts for: of a position, in tokens; of a kind of draft, in tokens for its chances, in drafts for how
often a request gets it."""
KEPT_OF_ALL, KEPT_OF_OWN = 0.97, 0.97
"""What is left of the evidence after a step: of all requests (each that verifies), and of each alone (every step)."""
OWN_RATE = 0.5
"""How far a token moves the log odds of its request."""


def kinds_of_lengths(max_tokens: int) -> list[int]:
    """Kind of a draft that is shorter than was asked for, by its length: of 0, 1, 2, 3 to 4, 5 to 8, ... tokens."""
    return [length if length < 2 else (length - 1).bit_length() + 1 for length in range(max_tokens)]


def longest_of_kinds(max_tokens: int) -> np.ndarray:
    """int64 ``[kinds]``: longest draft of each kind; the last kind is of those as long as was asked for."""
    kinds = kinds_of_lengths(max_tokens)
    return np.array([*({kind: length for length, kind in enumerate(kinds)}.values()), max_tokens])


class Acceptance:
    """Rates with exponential forgetting.

    A proposer that stops short says how sure it is: an n-gram draft of one token stands on a short match, one as long
    as was asked for on a long one. So drafts are told apart by their delivered length, their *kind*. The log odds of a
    token whose predecessors were accepted go by kind and position, plus one number of the request's own, which follows
    its right and wrong tokens and fades. A kind of which little is known goes by the position in all kinds.

    Args:
        max_tokens: Longest draft.
        requests: What is known of single requests.
    """

    def __init__(self, max_tokens: int, requests: RequestTable) -> None:
        kinds = kinds_of_lengths(max_tokens)
        self._full = kinds[-1] + 1
        self._kinds = np.array(kinds)
        self._positions = np.arange(1, max_tokens + 1)
        self._of_kind = np.eye(self._full + 1)
        self._counts = np.zeros((self._full + 1, 2 * max_tokens))  # tokens tried, then those of them that were right
        self._seen = np.zeros(self._full + 1)
        self._seen[self._full] = 1.0
        self._requests = requests
        self.refresh()

    def refresh(self) -> None:
        """Work out the log odds of all requests from the evidence there is."""
        tried, right = np.split(self._counts, 2, axis=1)
        of_position = (right.sum(0) + CHANCE_WEIGHT * FIRST_CHANCE) / (tried.sum(0) + CHANCE_WEIGHT)
        chances = (right + KIND_WEIGHT * of_position) / (tried + KIND_WEIGHT)
        self._log_odds = np.log(chances / np.maximum(1.0 - chances, 1e-9))

    def kinds(self, lengths: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """int64 ``[drafts]``: the kind of each draft, from its length and what was asked for."""
        return np.where(lengths >= asked, self._full, self._kinds[np.minimum(lengths, len(self._kinds) - 1)])

    def shares(self, rows: np.ndarray) -> np.ndarray:
        """float64 ``[requests, kinds]``: how often each request gets a draft of each kind."""
        seen = self._requests.seen[rows] + KIND_WEIGHT * (self._seen / self._seen.sum())
        return np.asarray(seen / seen.sum(axis=1, keepdims=True))

    def chances(self, rows: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """float64 ``[requests, width]``: that a draft of this kind is accepted up to a token."""
        return np.asarray(self._next_chances(rows, kinds).cumprod(axis=1))

    def chances_of_every_kind(self, rows: np.ndarray) -> np.ndarray:
        """float64 ``[requests, kinds, width]``: as ``chances``, for every kind that has tokens."""
        log_odds = self._log_odds[1:] + self._requests.own[rows][:, None, None]
        return np.asarray((1.0 / (1.0 + np.exp(-log_odds))).cumprod(axis=2))

    def _next_chances(self, rows: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        log_odds = self._log_odds[kinds] + self._requests.own[rows][:, None]
        return np.asarray(1.0 / (1.0 + np.exp(-log_odds)))

    def delivered(self, rows: np.ndarray, kinds: np.ndarray) -> None:
        """Learn the kinds of drafts that requests got."""
        self._requests.seen[rows, kinds] += 1.0
        self._seen *= KEPT_OF_ALL
        self._seen += np.bincount(kinds, minlength=self._full + 1)

    def verified(self, rows: np.ndarray, kinds: np.ndarray, lengths: np.ndarray, accepted: np.ndarray) -> None:
        """Learn what came of verified drafts, an entry for each.

        A token counts where those before it were accepted: what comes after a wrong one tells nothing.
        """
        num_tried = np.minimum(lengths, accepted + 1)
        tried = self._positions <= num_tried[:, None]
        expected = (self._next_chances(rows, kinds) * tried).sum(axis=1)
        self._requests.own[rows] += OWN_RATE * (accepted - expected)
        counts = np.concatenate([tried, self._positions <= accepted[:, None]], axis=1, dtype=np.float64)
        self._counts *= KEPT_OF_ALL
        self._counts += self._of_kind[kinds].T @ counts

    def fade(self) -> None:
        """A step has passed: what is known of single requests counts a little less."""
        self._requests.own *= KEPT_OF_OWN
        self._requests.seen *= KEPT_OF_OWN
