"""Only even ids, or only odd ones, as the request asks."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from paceline.api import (
    ConstrainedRequest,
    Constraint,
    ConstraintBatch,
    ConstraintCapabilities,
    ConstraintContext,
    ConstraintError,
    ConstraintSpec,
    ReleaseReason,
    TargetFacts,
    hookimpl,
)


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Parity(Constraint):
    def __init__(self, options: Options, context: ConstraintContext) -> None:
        self.ids = np.arange(context.target.vocab_size)
        self.has_words = context.tokenizer is not None
        self.live: set[str] = set()

    def check(self, request: ConstrainedRequest) -> None:
        if request.asked not in ("even", "odd"):
            raise ConstraintError(f'"{request.asked}" is no parity; ask for "even" or "odd"', request.request_id)

    def masks(self, batch: ConstraintBatch) -> np.ndarray:
        self.live.update(request.request_id for request in batch.requests)
        rows = zip(batch.row_request.tolist(), batch.drafted, strict=True)
        allowed = [self.allowed(batch.requests[index], drafted[drafted >= 0]) for index, drafted in rows]
        return np.packbits(np.array(allowed), axis=1, bitorder="little")

    def allowed(self, request: ConstrainedRequest, drafted: np.ndarray) -> np.ndarray:
        parity = 0 if request.asked == "even" else 1
        history = np.concatenate([request.output, drafted])
        fits = bool(np.all(history % 2 == parity)) and not set(history.tolist()) & set(request.end_token_ids)
        return (self.ids % 2 == parity) & fits

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        if reason in (ReleaseReason.FINISHED, ReleaseReason.ABORTED, ReleaseReason.PREEMPTED):
            self.live -= set(request_ids)

    def close(self) -> None:
        self.live.clear()


def describe(options: Options, target: TargetFacts) -> ConstraintCapabilities:
    return ConstraintCapabilities(structured_outputs=frozenset())


@hookimpl
def paceline_constraints() -> list[ConstraintSpec]:
    return [
        ConstraintSpec(
            name="frozen_constraint_0_1",
            summary="Even or odd ids",
            options=Options,
            requires_api=">=0.1,<0.2",
            describe=describe,
            build=Parity,
        )
    ]
