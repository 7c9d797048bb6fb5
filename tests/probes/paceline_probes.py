"""Proposers that know the true continuation and err on purpose, just when a test needs it; and a constraint."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pydantic import BaseModel, ConfigDict

from paceline.api import (
    CommittedBatch,
    ConstrainedRequest,
    Constraint,
    ConstraintBatch,
    ConstraintCapabilities,
    ConstraintContext,
    ConstraintSpec,
    Drafts,
    DraftShape,
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


class ProbeOptions(BaseModel):
    """``truth``: whole sequences (prompt and output); ``wrong_at``: which draft position is wrong."""

    model_config = ConfigDict(extra="forbid")

    truth: list[list[int]] = []
    wrong_at: int = 10**6
    seed: int = 0


class Probe(Proposer):
    """Drafts what ``draft(request, truth, budget)`` says, and logs what it is told."""

    def __init__(self, options: ProbeOptions, vocab_size: int) -> None:
        self.options = options
        self.vocab_size = vocab_size
        self.random = np.random.default_rng(options.seed)
        self.observed: list[CommittedBatch] = []
        self.released: list[tuple[tuple[str, ...], ReleaseReason]] = []

    def propose(self, batch: ProposeBatch) -> Drafts:
        budgets = batch.budgets.tolist()
        return Drafts.from_lists(
            [self.draft(r, self.truth(r), n) for r, n in zip(batch.requests, budgets, strict=True)]
        )

    def observe(self, committed: CommittedBatch) -> None:
        self.observed.append(committed)

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        self.released.append((request_ids, reason))

    def truth(self, request: RequestView) -> list[int]:
        """The true continuation as far as the known sequences that begin with the request's tokens agree on it."""
        known = request.tokens.tolist()
        possible = [sequence[len(known) :] for sequence in self.options.truth if sequence[: len(known)] == known]
        agreed = min(possible, key=len, default=[])
        while any(sequence[: len(agreed)] != agreed for sequence in possible):
            agreed = agreed[:-1]
        return agreed

    def wrong(self, token: int) -> int:
        return (token + 1) % self.vocab_size

    def draft(self, request: RequestView, truth: list[int], budget: int) -> list[int]:
        raise NotImplementedError


class Oracle(Probe):
    """The truth, with the token at ``wrong_at`` wrong."""

    def draft(self, request: RequestView, truth: list[int], budget: int) -> list[int]:
        return [self.wrong(t) if i == self.options.wrong_at else t for i, t in enumerate(truth[:budget])]


class AlwaysWrong(Probe):
    def draft(self, request: RequestView, truth: list[int], budget: int) -> list[int]:
        return [self.wrong(token) for token in truth[:budget]]


class RandomTokens(Probe):
    def draft(self, request: RequestView, truth: list[int], budget: int) -> list[int]:
        return self.random.integers(0, self.vocab_size, int(self.random.integers(0, budget + 1))).tolist()


class Empty(Probe):
    """No drafts at all for every second request, the truth for the others."""

    def draft(self, request: RequestView, truth: list[int], budget: int) -> list[int]:
        number, _, sample = request.request_id.partition("-")
        return truth[:budget] if (int(number) + int(sample or 0)) % 2 else []


class Tree(Probe):
    """A binary tree in breadth-first order: of two siblings the second is the truth, below a false one all is false."""

    def propose(self, batch: ProposeBatch) -> Drafts:
        trees = [self.tree(self.truth(r), n) for r, n in zip(batch.requests, batch.budgets.tolist(), strict=True)]
        return Drafts.from_lists([tokens for tokens, _ in trees], [parents for _, parents in trees])

    def tree(self, truth: list[int], budget: int) -> tuple[list[int], list[int]]:
        tokens: list[int] = []
        parents: list[int] = []
        level: list[tuple[int, int]] = [(-1, 0)]
        while level and len(tokens) < budget:
            below = []
            for parent, depth in level:
                if depth >= len(truth):
                    continue
                for token in self.pair(truth[depth], depth):
                    if len(tokens) < budget:
                        below.append((len(tokens), depth + 1))
                        tokens.append(token)
                        parents.append(parent)
            level = below
        return tokens, parents

    def pair(self, token: int, depth: int) -> list[int]:
        right = self.wrong(token) if depth == self.options.wrong_at else token
        return [self.wrong(self.wrong(token)), right]


def _capabilities(shape: DraftShape, **extra: object) -> Callable[[ProbeOptions, TargetFacts], ProposerCapabilities]:
    def describe(options: ProbeOptions, target: TargetFacts) -> ProposerCapabilities:
        return ProposerCapabilities(max_tokens=64, shape=shape, **extra)  # type: ignore[arg-type]

    return describe


def _spec(name: str, probe: type[Probe], shape: DraftShape = DraftShape.CHAIN, **extra: object) -> ProposerSpec:
    def build(options: ProbeOptions, context: ProposerContext) -> Probe:
        return probe(options, context.target.vocab_size)

    return ProposerSpec(
        name=name,
        summary=probe.__doc__ or name,
        options=ProbeOptions,
        requires_api=">=0.1",
        describe=_capabilities(shape, **extra),
        build=build,
    )


@hookimpl
def paceline_proposers() -> list[ProposerSpec]:
    return [
        _spec("oracle", Oracle),
        _spec("wrong", AlwaysWrong),
        _spec("random", RandomTokens),
        _spec("empty", Empty),
        _spec("tree", Tree, DraftShape.TREE),
        _spec("features", Oracle, hidden_layers=(0, 1, "final"), target_top_k=3, recompute_tail=2),
    ]


class NoOptions(BaseModel):
    """Nothing is asked."""


class Residue(Constraint):
    """Of the ids, those whose sum with the output so far is no multiple of the number asked for."""

    def __init__(self, vocab_size: int) -> None:
        self.ids = np.arange(vocab_size)

    def masks(self, batch: ConstraintBatch) -> np.ndarray:
        rows = zip(batch.row_request.tolist(), batch.drafted, strict=True)
        allowed = [self._allowed(batch.requests[index], drafted[drafted >= 0]) for index, drafted in rows]
        return np.packbits(np.array(allowed), axis=1, bitorder="little")

    def _allowed(self, request: ConstrainedRequest, drafted: np.ndarray) -> np.ndarray:
        history = np.concatenate([request.output, drafted])
        if len(drafted) and not self._fits(request.asked, history[:-1], history[-1:])[0]:
            return np.zeros(len(self.ids), dtype=bool)
        return self._fits(request.asked, history, self.ids)

    def _fits(self, divisor: int, history: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        fits: np.ndarray = (tokens + int(history.sum())) % divisor > 0
        return fits


@hookimpl
def paceline_constraints() -> list[ConstraintSpec]:
    def build(options: NoOptions, context: ConstraintContext) -> Residue:
        return Residue(context.target.vocab_size)

    return [
        ConstraintSpec(
            name="residue",
            summary=Residue.__doc__ or "",
            options=NoOptions,
            requires_api=">=0.1",
            describe=lambda options, target: ConstraintCapabilities(),
            build=build,
        )
    ]
