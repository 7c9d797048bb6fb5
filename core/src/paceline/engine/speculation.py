"""Speculation: the boundary between the step, the proposer and the controller."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from paceline.api import (
    ControllerCapabilities,
    Drafts,
    EngineState,
    ProposeBatch,
    Proposer,
    ProposerCapabilities,
    ReleaseReason,
    SpeculationController,
    StepOutcome,
)
from paceline.engine.checks import check_budgets, check_drafts, check_lengths
from paceline.engine.commit import Committed
from paceline.engine.committed import committed_batch
from paceline.engine.drafted import ChosenDrafts, cut_forbidden
from paceline.engine.mask_table import MaskTable
from paceline.engine.paged_model import GroupView
from paceline.engine.plan import DraftRows, Selected
from paceline.engine.request import Request
from paceline.engine.sampling_table import SamplingTable
from paceline.engine.target_pass import TargetOutput
from paceline.host.loading import Loaded
from paceline.kv.manager import KVManager
from paceline.sampling.choice import sample
from paceline.sampling.noise import gumbel

__all__ = ["NoSpeculation", "Speculation", "Speculator"]


class Speculation(Protocol):
    """What the step asks of speculation."""

    def budgets(self, decoding: list[Request], num_waiting: int) -> np.ndarray:
        """Most drafts each request may use now, int64 ``[decoding]``."""

    def propose(self, selected: Selected) -> DraftRows:
        """Checked candidates for the decoding requests."""

    def observe(self, committed: Committed, output: TargetOutput) -> None:
        """Hand over what became true."""

    def report(self, outcome: StepOutcome) -> None:
        """Tell the controller what the step cost and brought."""

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        """Forget requests."""

    def close(self) -> None:
        """Give back what is held."""


class NoSpeculation:
    """No proposer: no drafts, no work."""

    def budgets(self, decoding: list[Request], num_waiting: int) -> np.ndarray:
        """Zeros."""
        return np.zeros(len(decoding), dtype=np.int64)

    def propose(self, selected: Selected) -> DraftRows:
        """Nothing."""
        return DraftRows.none(len(selected.decoding))

    def observe(self, committed: Committed, output: TargetOutput) -> None:
        """Nobody listens."""

    def report(self, outcome: StepOutcome) -> None:
        """Nobody listens."""

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        """Nobody remembers."""

    def close(self) -> None:
        """Nothing is held."""


class Speculator:
    """A proposer and a controller, with every answer checked before it is used."""

    def __init__(
        self,
        *,
        proposer: Loaded,
        proposer_object: Proposer,
        capabilities: ProposerCapabilities,
        controller: Loaded,
        controller_object: SpeculationController,
        controller_capabilities: ControllerCapabilities,
        kv: KVManager,
        table: SamplingTable,
        masks: MaskTable,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._proposer_plugin = proposer
        self._proposer = proposer_object
        self._capabilities = capabilities
        self._controller_plugin = controller
        self._controller = controller_object
        self._trims = type(controller_object).trim is not SpeculationController.trim
        self._learns = type(controller_object).observe is not SpeculationController.observe
        self._learns_every_step = controller_capabilities.every_step
        self._forgets = type(controller_object).release is not SpeculationController.release
        self._observes = type(proposer_object).observe is not Proposer.observe
        self._kv = kv
        self._table = table
        self._masks = masks
        self._vocab_size = vocab_size
        self._vocab = torch.arange(vocab_size, device=device)
        self._num_waiting = 0

    def budgets(self, decoding: list[Request], num_waiting: int) -> np.ndarray:
        """Ask the controller, within each request's limit."""
        self._num_waiting = num_waiting
        state = self._state(decoding)
        if not state.limits.any():
            return state.limits
        with self._controller_plugin.boundary("budgets"):
            budgets = check_budgets(self._controller.budgets(state), len(decoding))
        return np.minimum(budgets, state.limits)

    def _state(self, requests: list[Request]) -> EngineState:
        return EngineState(
            request_ids=tuple(request.request_id for request in requests),
            limits=np.array([self._limit(request) for request in requests], dtype=np.int64),
            drafted=np.array([request.metrics.num_draft_tokens for request in requests], dtype=np.int64),
            accepted=np.array([request.metrics.num_accepted_tokens for request in requests], dtype=np.int64),
            num_waiting=self._num_waiting,
            free_block_ratio=self._kv.num_free / self._kv.num_total,
        )

    def _limit(self, request: Request) -> int:
        """One token of the room is the target's own: the correction or the bonus."""
        limit = min(self._capabilities.max_tokens, request.room - 1)
        return limit if request.draft_limit is None else min(limit, request.draft_limit)

    def propose(self, selected: Selected) -> DraftRows:
        """Ask the proposer for the requests with a budget; spread its answer over all decoding ones."""
        chosen = np.flatnonzero(selected.budgets)
        if not len(chosen):
            return DraftRows.none(len(selected.decoding))
        requests = [selected.decoding[index] for index in chosen]
        budgets = selected.budgets[chosen]
        with self._proposer_plugin.boundary("propose"):
            drafts = self._proposer.propose(self._batch(requests, budgets))
            rows = check_drafts(drafts, budgets, self._vocab_size, self._capabilities.shape)
        rows = rows.trimmed(self._kept(drafts, rows, requests))
        rows = cut_forbidden(rows, np.array([request.row for request in requests]), self._masks)
        return _spread(rows, chosen, len(selected.decoding))

    def _kept(self, drafts: Drafts, rows: DraftRows, requests: list[Request]) -> np.ndarray:
        if not self._trims:
            return rows.lengths
        with self._controller_plugin.boundary("trim"):
            return check_lengths(self._controller.trim(drafts, self._state(requests)), rows.lengths)

    def _batch(self, requests: list[Request], budgets: np.ndarray) -> ProposeBatch:
        table_rows = np.array([request.row for request in requests], dtype=np.int64)
        num_known = np.array([request.num_tokens for request in requests], dtype=np.int64)
        chosen = ChosenDrafts(num_known, int(budgets.max())) if self._table.reads_drafts(table_rows) else None

        def noise(positions: np.ndarray) -> torch.Tensor:
            params = self._table.gather(table_rows, positions)
            values = gumbel(params.seeds, params.positions, self._vocab)
            return torch.where((params.temperature > 0)[:, None], values, torch.zeros_like(values))

        def choose(logits: torch.Tensor, positions: np.ndarray, drafted: np.ndarray | None = None) -> torch.Tensor:
            if drafted is None and chosen is not None:
                drafted = chosen.before(positions)
            rows = self._table.gather(table_rows, positions, drafted)
            tokens = sample(logits[:, : self._vocab_size], rows).tokens
            if chosen is not None:
                chosen.keep(positions, tokens.cpu().numpy())
            return tokens

        return ProposeBatch(
            requests=tuple(request.view() for request in requests),
            budgets=budgets,
            last_tokens=np.array([request.tokens[-1] for request in requests], dtype=np.int64),
            positions=num_known - 1,
            kv=self._views(requests),
            noise=noise,
            choose=choose,
        )

    def _views(self, requests: list[Request]) -> dict[str, GroupView]:
        return {group.name: GroupView(self._kv, group.name, requests) for group in self._capabilities.kv_groups}

    def observe(self, committed: Committed, output: TargetOutput) -> None:
        """Hand the proposer what became true for the requests that live on."""
        if not self._observes:
            return
        batch = committed_batch(committed, output, self._views)
        if batch.requests:
            with self._proposer_plugin.boundary("observe"):
                self._proposer.observe(batch)

    def report(self, outcome: StepOutcome) -> None:
        """Tell the controller what the step cost and brought, if it wants to know."""
        if not self._learns or not (outcome.request_ids or self._learns_every_step):
            return
        with self._controller_plugin.boundary("observe"):
            self._controller.observe(outcome)

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        """Let the proposer and the controller forget requests."""
        with self._proposer_plugin.boundary("release"):
            self._proposer.release(request_ids, reason)
        if self._forgets:
            with self._controller_plugin.boundary("release"):
                self._controller.release(request_ids, reason)

    def close(self) -> None:
        """Close the proposer."""
        with self._proposer_plugin.boundary("close"):
            self._proposer.close()


def _spread(rows: DraftRows, chosen: np.ndarray, num_requests: int) -> DraftRows:
    """Put the rows of the ``chosen`` requests among all of them."""
    if len(chosen) == num_requests:
        return rows
    lengths = np.zeros(num_requests, dtype=np.int64)
    lengths[chosen] = rows.lengths

    def among_all(values: np.ndarray) -> np.ndarray:
        out = np.full((num_requests, values.shape[1]), -1, dtype=np.int64)
        out[chosen] = values
        return out

    return DraftRows(among_all(rows.tokens), lengths, None if rows.parents is None else among_all(rows.parents))
