"""Plugins of the kit's own, installed only while it builds an engine: a proposer that is often right."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from paceline.api import (
    Drafts,
    ProposeBatch,
    Proposer,
    ProposerCapabilities,
    ProposerContext,
    ProposerSpec,
    RequestView,
    TargetFacts,
    hookimpl,
)

__all__ = ["NAME", "paceline_proposers"]

NAME = "paceline_kit"


class TruthOptions(BaseModel):
    """Whole sequences, prompt and output, that requests will come to."""

    model_config = ConfigDict(extra="forbid")

    truth: list[list[int]] = []


class TruthProposer(Proposer):
    """Drafts the known continuation, every third token of which it spoils; some drafts are followed, some are not."""

    def __init__(self, options: TruthOptions, context: ProposerContext) -> None:
        self._truth = options.truth
        self._vocab_size = context.target.vocab_size

    def propose(self, batch: ProposeBatch) -> Drafts:
        pairs = zip(batch.requests, batch.budgets.tolist(), strict=True)
        return Drafts.from_lists([self._draft(request, budget) for request, budget in pairs])

    def _draft(self, request: RequestView, budget: int) -> list[int]:
        known = request.tokens.tolist()
        whole = next((whole for whole in self._truth if whole[: len(known)] == known), known)
        drafted = np.array(whole[len(known) : len(known) + budget], dtype=np.int64)
        drafted[(np.arange(len(drafted)) + len(known)) % 3 == 0] += 1
        tokens: list[int] = (drafted % self._vocab_size).tolist()
        return tokens


def _describe(options: TruthOptions, target: TargetFacts) -> ProposerCapabilities:
    return ProposerCapabilities(max_tokens=target.max_model_len - 1)


@hookimpl
def paceline_proposers() -> tuple[ProposerSpec, ...]:
    """Declare the proposer."""
    return (
        ProposerSpec(
            name=NAME,
            summary="Drafts a known continuation; of the conformance kit",
            options=TruthOptions,
            requires_api=">=0.1",
            describe=_describe,
            build=TruthProposer,
        ),
    )
