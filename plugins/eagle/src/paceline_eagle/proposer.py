"""The proposer: keeps the head's KV in step with the target, and lets a drafter go on from there."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.api import CommittedBatch, Drafts, KVView, ProposeBatch, Proposer, ReleaseReason, RequestView
from paceline_eagle.backlog import Backlog
from paceline_eagle.kv_group import KV_GROUP
from paceline_eagle.runner import FIRST_ENTRY, HeadRunner

__all__ = ["Drafter", "EagleProposer"]


class Drafter(Protocol):
    """Drafts for the requests of a batch whose KV is complete."""

    def draft(self, batch: ProposeBatch, view: KVView, states: Tensor, budgets: np.ndarray) -> Drafts:
        """Draft.

        Args:
            batch: The batch.
            view: Of the head's group; the entries of all known tokens are made.
            states: ``[requests, H]``, of the last known tokens.
            budgets: int64 ``[requests]``, at most those of the batch; 0 for requests that cannot draft now.
        """


class EagleProposer(Proposer):
    """Drafts with an EAGLE head on the target's features.

    The entry in slot ``s`` is made from the token at ``s`` and the target's feature of ``s - 1``. Prompt chunks and
    recomputed tokens get their entries when they are observed, all but the last; the last feature, and those of a
    decoding step, wait for the next draft, whose first forward they are part of. If none comes, the next observation
    makes up for it. Entries of drafts are never reported: what was drafted is made again from true features.

    Args:
        runner: The head.
        drafter: Chain or tree.
    """

    def __init__(self, runner: HeadRunner, drafter: Drafter) -> None:
        self._runner = runner
        self._drafter = drafter
        self._backlogs: dict[str, Backlog] = {}

    def propose(self, batch: ProposeBatch) -> Drafts:
        """Complete the requests' KV, and draft from their last known tokens."""
        with torch.inference_mode():
            return self._proposed(batch, batch.kv[KV_GROUP])

    def _proposed(self, batch: ProposeBatch, view: KVView) -> Drafts:
        taken = {
            index: self._backlogs.pop(request.request_id)
            for index, request in enumerate(batch.requests)
            if request.request_id in self._backlogs
        }
        if not taken:
            return Drafts.empty(len(batch.requests))
        last = self._extend(view, batch.requests, taken)
        states = last.new_zeros(len(batch.requests), last.shape[1])
        states[list(taken)] = last
        budgets = np.zeros_like(batch.budgets)
        budgets[list(taken)] = batch.budgets[list(taken)]
        return self._drafter.draft(batch, view, states, budgets)

    def observe(self, committed: CommittedBatch) -> None:
        """Take the features that came true; make the entries that no draft will wait for."""
        with torch.inference_mode():
            ready = self._queued(committed)
            if ready:
                self._extend(committed.kv[KV_GROUP], committed.requests, ready)

    def _queued(self, committed: CommittedBatch) -> dict[int, Backlog]:
        """Put the features behind what waits; what is not to wait any longer, by index of the request."""
        counts = np.bincount(committed.row_request, minlength=len(committed.requests))
        parts = self._runner.fuse(committed.features).split(counts.tolist())
        first_rows = np.cumsum(counts) - counts
        ready: dict[int, Backlog] = {}
        for index in np.flatnonzero(counts).tolist():
            request = committed.requests[index]
            new = Backlog(int(committed.positions[first_rows[index]]) + 1, parts[index])
            waiting = self._backlogs.get(request.request_id)
            queue = new if waiting is None else waiting.followed_by(new)
            is_chunk = committed.recomputation[index] or committed.computed[index, 0] < request.num_prompt_tokens
            num_ready = len(queue.features) - (1 if is_chunk else len(new.features))
            now, self._backlogs[request.request_id] = queue.split(num_ready)
            if num_ready:
                ready[index] = now
        return ready

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        """Drop what waits for these requests; their KV is the core's."""
        for request_id in request_ids:
            self._backlogs.pop(request_id, None)

    def _extend(self, view: KVView, requests: tuple[RequestView, ...], parts: dict[int, Backlog]) -> Tensor:
        """Make the entries of ``parts`` (by index of the request) and report them; the last states, ``[parts, H]``."""
        indices = np.array(list(parts), dtype=np.int64)
        starts = np.array([part.start for part in parts.values()], dtype=np.int64)
        stops = np.array([part.stop for part in parts.values()], dtype=np.int64)
        self._begin(view, indices, starts)
        slots = np.concatenate([np.arange(*span) for span in zip(starts.tolist(), stops.tolist(), strict=True)])
        tokens = np.concatenate([requests[index].tokens[part.start : part.stop] for index, part in parts.items()])
        states = self._runner.forward(
            view,
            row_request=np.repeat(indices, stops - starts),
            slots=slots,
            positions=slots,
            tokens=torch.from_numpy(tokens),
            hidden=torch.cat([part.features for part in parts.values()]),
        )
        computed = view.computed
        computed[indices] = stops
        view.report(computed)
        return states[torch.from_numpy(np.cumsum(stops - starts) - 1).to(states.device)]

    def _begin(self, view: KVView, indices: np.ndarray, starts: np.ndarray) -> None:
        """Prepare ranges that begin now: with the sequence, or late, where a prefix hit gave less of the head's KV."""
        computed, first = view.computed, view.first
        is_new = (computed[indices] == 0) & (starts == FIRST_ENTRY)
        if is_new.any():
            self._runner.clear_first_slots(view, indices[is_new])
        is_late = ~is_new & (computed[indices] < starts)
        if is_late.any():
            computed[indices[is_late]] = first[indices[is_late]] = starts[is_late]
            view.report(computed, first)
