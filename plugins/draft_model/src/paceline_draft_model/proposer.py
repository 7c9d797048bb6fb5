"""The proposer for one vocabulary: a chain drafted token by token, its KV in the slots of the target's own tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.api import CommittedBatch, Drafts, KVView, PagedModel, ProposeBatch, Proposer, RequestView
from paceline_draft_model.choosing import ChainBuilder, Rule
from paceline_draft_model.kv_group import KV_GROUP

__all__ = ["DraftModelProposer"]


class DraftModelProposer(Proposer):
    """Drafts with a causal LM of the target's vocabulary: one forward of all requests per draft position.

    All its state is KV, and how much of that holds is read from the view in each call: rejected drafts,
    preemptions and prefix hits need no bookkeeping here. ``k`` drafts take ``k`` forwards, the last is never fed.

    Args:
        model: The draft model on the engine's blocks.
        vocab_size: Ids that may be drafted; padded logits beyond them are dropped.
        rule: How tokens are chosen.
    """

    def __init__(self, model: PagedModel, vocab_size: int, rule: Rule) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._rule = rule

    def propose(self, batch: ProposeBatch) -> Drafts:
        """Return chains as long as budgets, reserved slots, the draft model's context and its confidence allow."""
        view, last = batch.kv[KV_GROUP], batch.positions
        chains = ChainBuilder(batch, self._rule)
        for depth in range(chains.width):
            chains.active &= last + depth < self._room(view)
            rows = np.flatnonzero(chains.active)
            if not len(rows):
                break
            if depth == 0:
                # A last token whose KV is there already is fed all the same: its logits are wanted.
                starts = np.minimum(view.computed, last)
                logits = self._feed(view, batch.requests, starts, np.where(chains.active, last + 1, starts))
            else:
                logits = self._forward(
                    view, chains.tokens[rows, depth - 1], last + depth, chains.active.astype(np.int64)
                )
            chains.extend(depth, rows, logits[:, : self._vocab_size])
        return chains.drafts()

    def observe(self, committed: CommittedBatch) -> None:
        """Follow the target through prompts and recomputed tokens; decoded tokens wait for the next draft."""
        view = committed.kv[KV_GROUP]
        num_prompt = np.array([request.num_prompt_tokens for request in committed.requests], dtype=np.int64)
        is_chunk = (committed.computed[:, 0] < num_prompt) | committed.recomputation
        starts = view.computed
        reachable = np.maximum(starts, np.minimum(committed.computed[:, 1], self._room(view)))
        stops = np.where(is_chunk, reachable, starts)
        if (stops > starts).any():
            self._feed(view, committed.requests, starts, stops)

    def _room(self, view: KVView) -> np.ndarray:
        """Positions that can be fed, per request."""
        room: np.ndarray = np.minimum(view.capacity, self._model.max_positions)
        return room

    def _feed(self, view: KVView, requests: tuple[RequestView, ...], starts: np.ndarray, stops: np.ndarray) -> Any:
        spans = zip(requests, starts.tolist(), stops.tolist(), strict=True)
        tokens = np.concatenate([request.tokens[start:stop] for request, start, stop in spans])
        return self._forward(view, tokens, starts, stops - starts)

    def _forward(self, view: KVView, tokens: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> Any:
        logits = self._model.forward(view, tokens, starts, counts)
        view.report(np.where(counts > 0, starts + counts, view.computed))
        return logits
