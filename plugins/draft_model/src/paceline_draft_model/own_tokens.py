"""KV of a draft model with a tokenizer of its own: its positions are those of its own tokens, in a private group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from paceline.api import CommittedBatch, KVView, PagedModel, RequestView

__all__ = ["OwnTokens", "prompt_parts"]


class OwnTokens:
    """Brings the draft model's KV of each request in line with a wanted sequence of its tokens.

    What was fed before stays as far as it begins the wanted sequence; only the rest is computed. So rejected drafts,
    text that is tokenised otherwise once more of it is known, and preemptions (after which nothing is there) are one
    case.

    Args:
        model: The draft model on a private group.
    """

    def __init__(self, model: PagedModel) -> None:
        self._model = model
        self._fed: dict[str, np.ndarray] = {}

    def feed(
        self, view: KVView, requests: Sequence[RequestView], wanted: Sequence[np.ndarray | None]
    ) -> tuple[np.ndarray, Any]:
        """Compute what is missing of the wanted tokens.

        Args:
            view: The group's view for the requests.
            requests: The requests.
            wanted: int64 ``[tokens]`` each, at least one; ``None`` leaves a request out.

        Returns:
            The requests for which there were slots and positions, int64 ``[rows]``, ascending; and the logits of their
            last tokens, float32 ``[rows, draft vocabulary]``; ``None`` without rows.
        """
        sizes = np.array([0 if tokens is None else len(tokens) for tokens in wanted], dtype=np.int64)
        sizes[sizes > self._model.max_positions] = 0
        view.reserve(sizes)
        rows = np.flatnonzero((sizes > 0) & (sizes <= view.capacity))
        if not len(rows):
            return rows, None
        starts, stops, pieces = view.computed, view.computed, []
        for row in rows.tolist():
            name, tokens = requests[row].request_id, wanted[row]
            assert tokens is not None
            starts[row] = min(self._num_kept(name, tokens), int(starts[row]), len(tokens) - 1)
            stops[row] = len(tokens)
            pieces.append(tokens[starts[row] :])
            self._fed[name] = tokens
        view.report(starts)
        logits = self._model.forward(view, np.concatenate(pieces), starts, stops - starts)
        view.report(stops)
        return rows, logits

    def _num_kept(self, name: str, tokens: np.ndarray) -> int:
        fed = self._fed.get(name, tokens[:0])
        size = min(len(fed), len(tokens))
        differs = np.flatnonzero(fed[:size] != tokens[:size])
        return int(differs[0]) if len(differs) else size

    def release(self, request_ids: Iterable[str]) -> None:
        """Forget requests."""
        for name in request_ids:
            self._fed.pop(name, None)


def prompt_parts(committed: CommittedBatch, tokens_of: Callable[[RequestView], np.ndarray]) -> list[np.ndarray | None]:
    """What to feed after a step: of requests in their prompt or recomputation, as many tokens as the target has."""
    parts: list[np.ndarray | None] = []
    for index, request in enumerate(committed.requests):
        start, stop = committed.computed[index].tolist()
        is_chunk = start < request.num_prompt_tokens or committed.recomputation[index]
        part = tokens_of(request)[:stop] if is_chunk else None
        parts.append(part if part is not None and len(part) else None)
    return parts
