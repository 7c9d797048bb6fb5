"""A constraint on sums, and what it becomes by one fault each."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.api import (
    ConstrainedRequest,
    Constraint,
    ConstraintBatch,
    ConstraintCapabilities,
    ReleaseReason,
    TargetFacts,
)


class Residue(Constraint):
    """No fault: of the ids, those whose sum with the output so far is no multiple of the number asked for."""

    def __init__(self, context: Any) -> None:
        self.ids = np.arange(context.target.vocab_size)

    @classmethod
    def capabilities(cls, target: TargetFacts) -> ConstraintCapabilities:
        return ConstraintCapabilities()

    def masks(self, batch: ConstraintBatch) -> np.ndarray:
        rows = zip(batch.row_request.tolist(), batch.drafted, strict=True)
        allowed = [self.allowed(batch.requests[index], drafted[drafted >= 0]) for index, drafted in rows]
        return np.packbits(np.array(allowed), axis=1, bitorder="little")

    def allowed(self, request: ConstrainedRequest, drafted: np.ndarray) -> np.ndarray:
        total = int(request.output.sum())
        for token in drafted.tolist():
            total += token
            if total % request.asked == 0:
                return np.zeros(len(self.ids), dtype=bool)
        return (self.ids + total) % request.asked > 0


class IgnoresDrafted(Residue):
    """looks at the output alone"""

    def allowed(self, request: ConstrainedRequest, drafted: np.ndarray) -> np.ndarray:
        return super().allowed(request, drafted[:0])


class GoesOn(Residue):
    """goes on after a token that was not allowed"""

    def allowed(self, request: ConstrainedRequest, drafted: np.ndarray) -> np.ndarray:
        return (self.ids + int(request.output.sum() + drafted.sum())) % request.asked > 0


class BigEndian(Residue):
    """packs the bits the other way round"""

    def masks(self, batch: ConstraintBatch) -> np.ndarray:
        return np.packbits(np.unpackbits(super().masks(batch), axis=1, bitorder="little"), axis=1)


class DeadEnd(Residue):
    """allows nothing after the second token"""

    def allowed(self, request: ConstrainedRequest, drafted: np.ndarray) -> np.ndarray:
        return super().allowed(request, drafted) & (len(request.output) + len(drafted) < 2)


class FirstRequest(Residue):
    """answers each row with the mask of the first"""

    def masks(self, batch: ConstraintBatch) -> np.ndarray:
        own = super().masks(batch)
        return np.repeat(own[:1], len(own), axis=0)


class Remembers(Residue):
    """adds up what it was shown, drafts that were rejected among them"""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.seen: dict[str, int] = {}

    def allowed(self, request: ConstrainedRequest, drafted: np.ndarray) -> np.ndarray:
        before = self.seen.get(request.request_id, 0)
        self.seen[request.request_id] = before + len(drafted)
        return super().allowed(request, drafted) & (self.ids % 50 != before)

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        for request_id in request_ids:
            self.seen.pop(request_id, None)


class KeepsState(Remembers):
    """keeps the output of a request that was preempted"""

    def allowed(self, request: ConstrainedRequest, drafted: np.ndarray) -> np.ndarray:
        longest = self.seen[request.request_id] = max(self.seen.get(request.request_id, 0), len(request.output))
        return Residue.allowed(self, request, drafted) & (self.ids != (0 if longest == len(request.output) else 7))

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        if reason is not ReleaseReason.PREEMPTED:
            super().release(request_ids, reason)


class Leaks(Residue):
    """keeps every mask"""

    def masks(self, batch: ConstraintBatch) -> np.ndarray:
        self.kept: list[np.ndarray] = [*getattr(self, "kept", []), super().masks(batch)]
        return self.kept[-1]


HONEST = Residue
CAUGHT_BY = {
    IgnoresDrafted: "test_drafted_tokens_count_as_emitted_ones",
    GoesOn: "test_what_is_not_allowed_leads_nowhere",
    BigEndian: "test_what_is_not_allowed_leads_nowhere",
    DeadEnd: "test_some_token_is_allowed",
    FirstRequest: "test_mates_change_nothing",
    Remembers: "test_rejected_drafts_leave_no_trace",
    KeepsState: "test_an_id_comes_again",
    Leaks: "test_memory_does_not_grow",
}
