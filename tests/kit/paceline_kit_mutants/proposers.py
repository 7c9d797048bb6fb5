"""A proposer that follows pairs of tokens, and what it becomes by one fault each."""

from __future__ import annotations

import itertools
import random
import threading
from typing import Any

import numpy as np

from paceline.api import (
    CommittedBatch,
    Drafts,
    ProposeBatch,
    Proposer,
    ProposerCapabilities,
    ReleaseReason,
    RequestView,
    TargetFacts,
)

Pairs = dict[int, int]


class Pairing(Proposer):
    """No fault: drafts what followed each token last time."""

    def __init__(self, context: Any) -> None:
        self.target: TargetFacts = context.target
        self.pairs: dict[str, Pairs] = {}

    @classmethod
    def capabilities(cls, target: TargetFacts) -> ProposerCapabilities:
        return ProposerCapabilities(max_tokens=target.max_model_len - 1)

    def propose(self, batch: ProposeBatch) -> Drafts:
        pairs = zip(batch.requests, batch.budgets.tolist(), strict=True)
        return Drafts.from_lists([self.draft(request, budget) for request, budget in pairs])

    def draft(self, request: RequestView, budget: int) -> list[int]:
        pairs = self.learn(request)
        drafted, token = [], int(request.tokens[-1])
        while len(drafted) < budget and token in pairs:
            token = pairs[token]
            drafted.append(token)
        return drafted

    def learn(self, request: RequestView) -> Pairs:
        pairs = self.pairs.setdefault(request.request_id, {})
        tokens = request.tokens.tolist()
        pairs.update(itertools.pairwise(tokens))
        return pairs

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        for request_id in request_ids:
            self.pairs.pop(request_id, None)


class OverBudget(Pairing):
    """drafts a token more than the budget"""

    def draft(self, request: RequestView, budget: int) -> list[int]:
        return super().draft(request, budget + 1)


class StrangeToken(Pairing):
    """drafts an id beyond the vocabulary"""

    def draft(self, request: RequestView, budget: int) -> list[int]:
        return [self.target.vocab_size]


class WrongConfidence(Pairing):
    """gives one confidence for each request instead of one for each token"""

    def propose(self, batch: ProposeBatch) -> Drafts:
        own = super().propose(batch)
        return Drafts(tokens=own.tokens, lengths=own.lengths, confidence=np.ones(len(own.tokens)))


class Unseeded(Pairing):
    """draws drafts from an unseeded generator"""

    def draft(self, request: RequestView, budget: int) -> list[int]:
        return [random.SystemRandom().randrange(self.target.vocab_size)]


class KeepsViews(Pairing):
    """looks up in the first view that it got of a request, long after the call"""

    def learn(self, request: RequestView) -> Pairs:
        self.views: dict[str, np.ndarray] = getattr(self, "views", {})
        tokens = self.views.setdefault(request.request_id, request.tokens).tolist()
        return dict(itertools.pairwise(tokens))


class WritesTokens(Pairing):
    """sorts the tokens of the request in place"""

    def draft(self, request: RequestView, budget: int) -> list[int]:
        request.tokens.flags.writeable = True
        request.tokens.sort()
        return super().draft(request, budget)


class SharesDomains(Pairing):
    """learns from all requests for all requests"""

    def learn(self, request: RequestView) -> Pairs:
        super().learn(request)
        self.shared: Pairs = getattr(self, "shared", {}) | self.pairs.pop(request.request_id)
        return self.shared


class HeedsMates(Pairing):
    """drafts the less the more requests there are"""

    def propose(self, batch: ProposeBatch) -> Drafts:
        rows = [
            self.draft(request, max(budget - len(batch.requests) + 1, 0))
            for request, budget in zip(batch.requests, batch.budgets.tolist(), strict=True)
        ]
        return Drafts.from_lists(rows)


class KeepsState(Pairing):
    """forgets a request when it ends, and not when it is aborted"""

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        if reason is not ReleaseReason.ABORTED:
            super().release(request_ids, reason)


class StrictRelease(Pairing):
    """fails on ids that it does not know"""

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        for request_id in request_ids:
            del self.pairs[request_id]

    def observe(self, committed: CommittedBatch) -> None:
        for request in committed.requests:
            self.learn(request)


class Leaks(Pairing):
    """keeps the ids of all requests that ended"""

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        super().release(request_ids, reason)
        self.ended: set[str] = getattr(self, "ended", set()) | set(request_ids)


class CountsRows(Pairing):
    """takes the rows that it observed for all of a request, though some came from the cache"""

    def observe(self, committed: CommittedBatch) -> None:
        self.rows: dict[str, int] = getattr(self, "rows", {})
        for index, request in enumerate(committed.requests):
            count = int((committed.row_request == index).sum())
            self.rows[request.request_id] = self.rows.get(request.request_id, 0) + count

    def draft(self, request: RequestView, budget: int) -> list[int]:
        if self.rows[request.request_id] != len(request.tokens) - 1:
            raise IndexError("rows are missing")
        return super().draft(request, budget)

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        for request_id in request_ids:
            getattr(self, "rows", {}).pop(request_id, None)


class ShortTable(Pairing):
    """has no room for the last positions before the context limit"""

    def draft(self, request: RequestView, budget: int) -> list[int]:
        np.zeros(self.target.max_model_len - 4)[len(request.tokens)] = 1
        return super().draft(request, budget)


class NeverPreempted(Pairing):
    """fails when a request is preempted"""

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        if reason is ReleaseReason.PREEMPTED:
            raise NotImplementedError("preemption")
        super().release(request_ids, reason)


class NeverAborted(Pairing):
    """fails when a request that it knows is aborted"""

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        if reason is ReleaseReason.ABORTED and any(request_id in self.pairs for request_id in request_ids):
            raise NotImplementedError("abort")
        super().release(request_ids, reason)


class FallingSlots(Pairing):
    """describes fewer slots for more tokens"""

    @classmethod
    def capabilities(cls, target: TargetFacts) -> ProposerCapabilities:
        return ProposerCapabilities(max_tokens=8, lookahead_slots=lambda budget: 8 - budget if budget else 0)


class Silent(Pairing):
    """drafts nothing at all"""

    def draft(self, request: RequestView, budget: int) -> list[int]:
        return []


class LeavesThread(Pairing):
    """begins a thread and never ends it"""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        threading.Thread(target=threading.Event().wait, args=(20,), daemon=True).start()


HONEST = Pairing
CAUGHT_BY = {
    OverBudget: "test_drafts_keep_to_budgets 1",
    StrangeToken: "test_drafts_keep_to_budgets 1",
    WrongConfidence: "test_drafts_keep_to_budgets 2",
    Unseeded: "test_drafts_repeat_under_a_seed",
    KeepsViews: "test_what_was_lent_is_not_kept",
    WritesTokens: "test_tokens_are_the_targets 0.7",
    SharesDomains: "test_trust_domains_are_kept_apart",
    HeedsMates: "test_mates_of_other_domains_change_nothing",
    KeepsState: "test_an_id_comes_again",
    StrictRelease: "test_release_of_unknown_ids",
    Leaks: "test_memory_does_not_grow",
    CountsRows: "test_prefix_hits_start_drafting",
    ShortTable: "test_context_limit",
    NeverPreempted: "test_preemption_at_every_step",
    NeverAborted: "test_aborts_at_every_step",
    FallingSlots: "test_capabilities_hold_together",
    Silent: "test_drafts_something",
    LeavesThread: "test_close_leaves_no_thread",
}
