"""The scheduler: gives out a token budget so that every request's computed tokens catch up with its known ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from paceline.engine.budgets import fit_budgets
from paceline.engine.plan import DraftRows, Plan, Selected, build_plan
from paceline.engine.request import Request
from paceline.kv.manager import KVManager

__all__ = ["Scheduler"]


class Scheduler:
    """Owns the queues. First come, first served; ``running`` is in order of admission, its last is preempted first.

    Progress: the first running request is never preempted and always gets a row, and what could not fit alone was
    refused; so every request ends. A preempted one is the next to be admitted.

    Args:
        kv: Block bookkeeping.
        max_num_seqs: Most running requests.
        max_num_batched_tokens: Most rows of a step, at least ``max_num_seqs``.
        lookahead_slots: ``budget -> slots`` that drafting itself writes beyond the known tokens.
        recompute_tail: Tokens of a prefix hit that are run again for the proposer's sake.
        on_preempt: Called with a request after its blocks were given back.
        on_admit: Called with a request after it got its blocks.
    """

    def __init__(
        self,
        kv: KVManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        lookahead_slots: Callable[[int], int],
        recompute_tail: int,
        on_preempt: Callable[[Request], None],
        on_admit: Callable[[Request], None],
    ) -> None:
        self._kv = kv
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._lookahead_slots = lookahead_slots
        self._recompute_tail = recompute_tail
        self._on_preempt = on_preempt
        self._on_admit = on_admit
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is, and give its blocks back."""
        if request in self.running:
            self.running.remove(request)
            self._kv.release(request.request_id)
        else:
            self.waiting.remove(request)

    def decoding(self) -> list[Request]:
        """Running requests with one uncomputed token, in order of admission."""
        return [request for request in self.running if request.num_uncomputed == 1]

    # -- select --------------------------------------------------------------------------------------------------

    def select(self, decoding: list[Request], budgets: np.ndarray) -> Selected:
        """Decide who runs, and reserve blocks for known tokens and drafts.

        Args:
            decoding: What ``decoding()`` gave, before anything changed.
            budgets: int64 ``[decoding]``, the most nodes each may draft.
        """
        self._reserve_known_tokens()
        kept = [index for index, request in enumerate(decoding) if request.row >= 0]
        decoding, budgets = [decoding[index] for index in kept], budgets[kept]
        num_rows_left = self._max_num_batched_tokens - len(decoding)
        self._admit_waiting(num_rows_left)
        emitting = {id(request) for request in decoding}
        chunks = [request for request in self.running if id(request) not in emitting]
        num_chunk_rows = min(sum(request.num_uncomputed for request in chunks), (num_rows_left + 1) // 2)
        budgets = self._reserve_drafts(decoding, fit_budgets(budgets, num_rows_left - num_chunk_rows))
        return Selected(decoding, budgets, chunks)

    def _reserve_known_tokens(self) -> None:
        """Every running request gets slots for its known tokens; the last admitted make room for earlier ones."""
        index = 0
        while index < len(self.running):
            request = self.running[index]
            if self._kv.reserve(request.request_id, request.num_tokens):
                index += 1
            else:
                self._preempt(self.running[-1])

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._kv.release(request.request_id)
        request.row = -1
        request.num_computed = request.write_from = request.num_restored = 0
        request.metrics.num_preemptions += 1
        self.waiting.appendleft(request)
        self._on_preempt(request)

    def _reserve_drafts(self, decoding: list[Request], budgets: np.ndarray) -> np.ndarray:
        """Draft slots come from what admission left; they shrink before they cost anybody a block."""
        granted = budgets.copy()
        for index in np.flatnonzero(budgets):
            granted[index] = self._reserve_draft_slots(decoding[index], int(budgets[index]))
        return granted

    def _reserve_draft_slots(self, request: Request, budget: int) -> int:
        while budget and not self._kv.reserve(request.request_id, request.num_tokens + self._draft_slots(budget)):
            budget -= 1
        return budget

    def _draft_slots(self, budget: int) -> int:
        return max(budget, self._lookahead_slots(budget))

    def _admit_waiting(self, num_rows_left: int) -> None:
        num_rows_left -= sum(request.num_uncomputed for request in self.running if request.num_uncomputed > 1)
        while self.waiting and num_rows_left > 0 and len(self.running) < self._max_num_seqs:
            if not self._admit(self.waiting[0]):
                return
            num_rows_left -= self.running[-1].num_uncomputed

    def _admit(self, request: Request) -> bool:
        """Admit if all known tokens fit beside one more block for each running request."""
        hit = self._kv.lookup(request.facts, request.tokens)
        if not self._kv.can_admit(hit, request.num_tokens, num_spare_blocks=len(self.running)):
            return False
        hit = self._kv.admit(request.facts, request.tokens)
        self._kv.reserve(request.request_id, request.num_tokens)
        self.running.append(self.waiting.popleft())
        request.row = self._kv.row(request.request_id)
        request.write_from = request.num_restored = hit.num_kv_tokens
        request.num_computed = min(hit.num_tokens, max(hit.num_kv_tokens - self._recompute_tail, 0))
        self._on_admit(request)
        return True

    # -- place ---------------------------------------------------------------------------------------------------

    def place(self, selected: Selected, drafts: DraftRows) -> Plan:
        """Lay out decodes and drafts; prompt chunks fill the rows that are left, in order of admission."""
        num_rows_left = self._max_num_batched_tokens - len(selected.decoding) - int(drafts.lengths.sum())
        chunks, sizes = [], []
        for request in selected.chunks:
            size = min(request.num_uncomputed, num_rows_left)
            if size <= 0:
                break
            chunks.append(request)
            sizes.append(size)
            num_rows_left -= size
        return build_plan(selected.decoding, drafts, chunks, sizes)
