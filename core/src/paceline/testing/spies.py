"""A proposer between the engine and the plugin's own: it notes what was asked and answered."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

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
from paceline.engine.checks import check_drafts
from paceline.engine.llm import LLM
from paceline.engine.speculation import Speculator

__all__ = ["ProposerSpy", "spy_on"]

Draft = tuple[int, tuple[int, ...], tuple[int, ...] | None]


class ProposerSpy(Proposer):
    """Hands the plugin copies of what the engine hands it.

    Args:
        own: The plugin's proposer.
        capabilities: What it described.
        target: The target's facts.
        spoils: Whether what was handed over is overwritten when the call has returned.
    """

    def __init__(self, own: Proposer, capabilities: ProposerCapabilities, target: TargetFacts, spoils: bool) -> None:
        self.own = own
        self.answers: list[Drafts] = []
        self.drafts: dict[str, list[Draft]] = defaultdict(list)
        self._capabilities = capabilities
        self._target = target
        self._spoils = spoils

    def propose(self, batch: ProposeBatch) -> Drafts:
        lent = replace(
            batch,
            requests=tuple(map(_copied, batch.requests)),
            budgets=batch.budgets.copy(),
            last_tokens=batch.last_tokens.copy(),
            positions=batch.positions.copy(),
        )
        drafts = self.own.propose(lent)
        rows = check_drafts(drafts, batch.budgets, self._target.vocab_size, self._capabilities.shape)
        self.answers.append(drafts)
        for index, request in enumerate(batch.requests):
            count = int(rows.lengths[index])
            parents = None if rows.parents is None else tuple(rows.parents[index, :count].tolist())
            self.drafts[request.request_id].append(
                (len(request.tokens), tuple(rows.tokens[index, :count].tolist()), parents)
            )
        self._take_back(batch.requests, lent.requests, [lent.budgets, lent.last_tokens, lent.positions])
        return Drafts(tokens=rows.tokens, lengths=rows.lengths, parents=rows.parents)

    def observe(self, committed: CommittedBatch) -> None:
        names = ("row_request", "positions", "tokens", "next_tokens", "computed", "restored", "emitted")
        arrays = {name: getattr(committed, name).copy() for name in names}
        lent = replace(committed, requests=tuple(map(_copied, committed.requests)), **arrays)
        self.own.observe(lent)
        self._take_back(committed.requests, lent.requests, list(arrays.values()))

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        self.own.release(request_ids, reason)

    def close(self) -> None:
        self.own.close()

    def _take_back(
        self, requests: tuple[RequestView, ...], lent: tuple[RequestView, ...], arrays: list[np.ndarray]
    ) -> None:
        for request, copy in zip(requests, lent, strict=True):
            same = np.array_equal(request.tokens, copy.tokens)
            assert same, f"the plugin wrote into the tokens of request {request.request_id}; they are to be read only"
        if self._spoils:
            for array in [*arrays, *(copy.tokens for copy in lent)]:
                array.flags.writeable = True
                array.fill(-7)


def _copied(request: RequestView) -> RequestView:
    tokens = request.tokens.copy()
    tokens.flags.writeable = False
    return replace(request, tokens=tokens)


def spy_on(llm: LLM, *, spoils: bool = False) -> ProposerSpy:
    """Put a spy between an engine and its proposer."""
    speculation = llm.engine._speculation
    assert isinstance(speculation, Speculator), "the engine has no proposer"
    spy = ProposerSpy(speculation._proposer, speculation._capabilities, llm.built.facts, spoils)
    speculation._proposer = spy
    return spy
