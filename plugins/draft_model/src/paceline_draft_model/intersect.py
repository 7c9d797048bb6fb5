"""The proposer for two vocabularies that share tokens: only those are drafted."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.api import CommittedBatch, Drafts, PagedModel, ProposeBatch, Proposer, ReleaseReason, RequestView
from paceline_draft_model.choosing import ChainBuilder, Rule
from paceline_draft_model.intersection import Intersection
from paceline_draft_model.kv_group import KV_GROUP
from paceline_draft_model.own_tokens import OwnTokens, prompt_parts

__all__ = ["IntersectProposer"]


class IntersectProposer(Proposer):
    """Drafts tokens that both vocabularies have; what only the target has is spelt in the draft model's tokens.

    The draft model's probabilities are renormalised over the shared tokens: all others are masked before the rule is
    applied. Its sequence is the translation of the target's, token by token.

    Args:
        model: The draft model on a private group.
        shared: The two vocabularies.
        start: Tokens that the draft model expects before every text.
        vocab_size: Ids of the target that may be drafted.
        rule: How tokens are chosen.
    """

    def __init__(self, model: PagedModel, shared: Intersection, start: list[int], vocab_size: int, rule: Rule) -> None:
        self._kv = OwnTokens(model)
        self._shared = shared
        self._start = start
        self._vocab_size = vocab_size
        self._rule = rule
        self._columns: tuple[Any, ...] | None = None
        self._known: dict[str, tuple[int, list[int]]] = {}

    def propose(self, batch: ProposeBatch) -> Drafts:
        """Return chains as long as budgets, slots, the draft model's context and its confidence allow."""
        view = batch.kv[KV_GROUP]
        chains = ChainBuilder(batch, self._rule, self._shared.is_shared)
        wanted = [self._translated(request) for request in batch.requests]
        for depth in range(chains.width):
            asked = [tokens if chains.active[row] else None for row, tokens in enumerate(wanted)]
            rows, logits = self._kv.feed(view, batch.requests, asked)
            if not len(rows):
                break
            chains.extend(depth, rows, self._of_target(logits))
            drafted = self._shared.draft_of(chains.tokens[:, depth])
            for row in np.flatnonzero(chains.active):
                wanted[row] = np.append(wanted[row], drafted[row])
        return chains.drafts()

    def _of_target(self, logits: Any) -> Any:
        """Logits ``[rows, target's ids]``, ``-inf`` at those that the draft model lacks."""
        if self._columns is None:  # on the device of the logits from now on; float32 holds ids up to 2**24
            ids = self._shared.target_ids, self._shared.draft_ids
            self._columns = tuple(logits.new_tensor(each).long() for each in ids)
        theirs, own = self._columns
        spread = logits.new_full((len(logits), self._vocab_size), -np.inf)
        spread[:, theirs] = logits[:, own]
        return spread

    def _translated(self, request: RequestView) -> np.ndarray:
        num_known, tokens = self._known.get(request.request_id, (0, list(self._start)))
        new = self._shared.translate(request.tokens[num_known:])
        if num_known == 0 and new[: len(self._start)] == self._start:
            tokens = []
        tokens += new
        self._known[request.request_id] = len(request.tokens), tokens
        return np.array(tokens, dtype=np.int64)

    def observe(self, committed: CommittedBatch) -> None:
        """Follow the target through prompts and recomputed tokens, no faster than it."""
        wanted = prompt_parts(committed, self._translated)
        self._kv.feed(committed.kv[KV_GROUP], committed.requests, wanted)

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        """Forget these requests."""
        self._kv.release(request_ids)
        for name in request_ids:
            self._known.pop(name, None)
