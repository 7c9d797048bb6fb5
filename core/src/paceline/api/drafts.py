"""The candidates that a proposer returns, and the rule by which it may choose them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Choose", "Drafts"]


def _padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    import numpy as np

    width = max((len(row) for row in rows), default=0)
    out = np.full((len(rows), width), -1, dtype=np.int64)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Draft tokens for the requests of one ``ProposeBatch``, in its order. Valid for one step.

    Attributes:
        tokens: int ``[requests, width]``, padded with -1; numpy (host) or torch (device).
        lengths: int ``[requests]``, the number of nodes of each row; 0 is fine.
        parents: int ``[requests, width]`` for trees: index of the parent node, smaller than the node's own,
            -1 for the last committed token. ``None`` means a chain.
        confidence: float ``[requests, width]``, estimated probability that the node is followed, or ``None``.
        probabilities: float ``[requests, width, vocab]`` for verifiers that need them, or ``None``.
        source: int ``[requests]``, which proposer of a cascade made the row, or ``None``.
    """

    tokens: Any
    lengths: Any
    parents: Any | None = None
    confidence: Any | None = None
    probabilities: Any | None = None
    source: Any | None = None

    @classmethod
    def from_lists(cls, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]] | None = None) -> Drafts:
        """Build drafts from one list of tokens (and, for trees, of parents) per request."""
        import numpy as np

        lengths = np.array([len(row) for row in tokens], dtype=np.int64)
        return cls(tokens=_padded(tokens), lengths=lengths, parents=None if parents is None else _padded(parents))

    @classmethod
    def empty(cls, num_requests: int) -> Drafts:
        """Drafts without a single token."""
        return cls.from_lists([[]] * num_requests)


class Choose(Protocol):
    """The verifier's own rule on a proposer's logits; valid until the ``propose`` call that received it returns.

    The rule is all of a request's sampling parameters (allowed ids, bad words, ``min_tokens``, bias, penalties,
    temperature, min-p, top-k, top-p) and its noise. Penalties and bad words look at the tokens before the position:
    the known ones, and those drafted in between. A proposer that drafts a chain front to back need not name the
    latter: the tokens that this object returned for earlier positions in the same call are taken (for a position
    chosen twice, the later choice). Whoever drafts otherwise, such as trees, gives them as ``drafted``.
    """

    def __call__(self, logits: Any, positions: np.ndarray, drafted: np.ndarray | None = None) -> Any:
        """Choose one token per request of the batch.

        Args:
            logits: float32 ``[requests, vocab]``, on the target's device. Rows of requests that want no token may
                hold anything finite.
            positions: int64 ``[requests]``, position of the token chosen.
            drafted: int64 ``[requests, width]``: what stands between the last known token and the position, in this
                order, padded with -1.

        Returns:
            int64 ``[requests]``, on the target's device.
        """
