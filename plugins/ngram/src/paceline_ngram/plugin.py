"""The entry point: options, proposer and hook."""

from __future__ import annotations

from math import ceil
from typing import Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from paceline.api import (
    Drafts,
    ProposeBatch,
    Proposer,
    ProposerCapabilities,
    ProposerContext,
    ProposerSpec,
    ReleaseReason,
    RequestView,
    TargetFacts,
    hookimpl,
)
from paceline_ngram.index import NgramIndex

__all__ = ["NgramOptions", "NgramProposer", "paceline_proposers"]


def _names(name: str, older: str) -> AliasChoices:
    return AliasChoices(name, older, f"ngram_{older}")


class NgramOptions(BaseModel):
    """Which matches count, and how far they are trusted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_match: int = Field(
        default=8,
        ge=1,
        le=64,
        validation_alias=_names("max_match", "prompt_lookup_max"),
        description="Longest n-gram looked up, in tokens.",
    )
    min_match: int = Field(
        default=1,
        ge=1,
        validation_alias=_names("min_match", "prompt_lookup_min"),
        description="Shortest n-gram worth a draft, in tokens.",
    )
    tokens_per_match: float = Field(
        default=1.0,
        ge=0.0,
        allow_inf_nan=False,
        description="A match of m tokens drafts 1 + ceil(tokens_per_match * m) tokens.",
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min_match > self.max_match:
            raise ValueError(
                f"min_match {self.min_match} is above max_match {self.max_match}; lower it or raise max_match"
            )
        return self


class NgramProposer(Proposer):
    """Prompt lookup (Saxena 2023) over prompt and output.

    A match of one or two tokens is right a third of the time, one of five or more over four fifths: the draft
    grows with the match. State is one index per request, caught up from ``RequestView.tokens`` when the request
    drafts: a preemption costs a rebuild, and a request that never drafts costs nothing.
    """

    def __init__(self, options: NgramOptions) -> None:
        self._options = options
        self._indexes: dict[str, NgramIndex] = {}

    def propose(self, batch: ProposeBatch) -> Drafts:
        """Return one chain per request, empty where nothing matches; amortised O(1) per known token."""
        budgets = batch.budgets.tolist()
        return Drafts.from_lists([self._draft(*pair) for pair in zip(batch.requests, budgets, strict=True)])

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        """Drop the indexes of these requests."""
        for request_id in request_ids:
            self._indexes.pop(request_id, None)

    def _draft(self, request: RequestView, budget: int) -> list[int]:
        index = self._indexes.setdefault(request.request_id, NgramIndex(self._options.max_match))
        index.extend(request.tokens[len(index.tokens) :].tolist())
        if index.match_length < self._options.min_match:
            return []
        num_useful = 1 + ceil(self._options.tokens_per_match * index.common_length(limit=budget))
        return index.continuation(min(budget, num_useful))


def _describe(options: NgramOptions, target: TargetFacts) -> ProposerCapabilities:
    return ProposerCapabilities(max_tokens=target.max_model_len - 1)


def _build(options: NgramOptions, context: ProposerContext) -> NgramProposer:
    return NgramProposer(options)


@hookimpl
def paceline_proposers() -> tuple[ProposerSpec, ...]:
    """Declare the proposer ``ngram``."""
    summary = "Prompt lookup over prompt and output; no model"
    return (
        ProposerSpec(
            name="ngram",
            summary=summary,
            options=NgramOptions,
            requires_api=">=0.1,<0.2",
            describe=_describe,
            build=_build,
        ),
    )
