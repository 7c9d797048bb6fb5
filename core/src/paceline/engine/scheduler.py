"""The scheduler: gives out a token budget so that every request's computed tokens catch up with its known ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from operator import attrgetter

import numpy as np

from paceline.engine.budgets import fit_budgets
from paceline.engine.plan import DraftRows, Plan, Selected, build_plan
from paceline.engine.request import Request
from paceline.kv.manager import KVManager
from paceline.kv.sequence import PrefixHit

__all__ = ["Scheduler"]

_rank = attrgetter("rank")


class Scheduler:
    """Owns the queues, both in order of rank: by priority, then first come, first served.

    The last running request is preempted first: for blocks that an earlier one needs for its own tokens, or for a
    waiting one of a better priority, if that can then be admitted. Equal priorities never displace each other.

    Progress: the first running request is only displaced by a better priority and always gets a row, and what could
    not fit alone was refused; so every request ends, once those of better priority have. A preempted one keeps its
    rank, and so is admitted before later ones of its priority.

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
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._num_added = 0
        self._preempted: set[int] = set()  # in the present call of select

    def add(self, request: Request) -> None:
        """Queue a request behind those of its priority."""
        request.rank = (request.priority, self._num_added)
        self._num_added += 1
        insort(self.waiting, request, key=_rank)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is, and give its blocks back."""
        if request in self.running:
            self.running.remove(request)
            self._kv.release(request.request_id)
        else:
            self.waiting.remove(request)

    def decoding(self) -> list[Request]:
        """Running requests with one uncomputed token, in order of rank."""
        return [request for request in self.running if request.num_uncomputed == 1]

    # -- select --------------------------------------------------------------------------------------------------

    def select(self, decoding: list[Request], budgets: np.ndarray) -> Selected:
        """Decide who runs, and reserve blocks for known tokens and drafts.

        Args:
            decoding: What ``decoding()`` gave, before anything changed.
            budgets: int64 ``[decoding]``, the most nodes each may draft.
        """
        self._preempted.clear()
        self._reserve_known_tokens()
        self._admit_waiting()
        kept = self._kept(decoding)
        decoding, budgets = [decoding[index] for index in kept], budgets[kept]
        num_rows_left = self._max_num_batched_tokens - len(decoding)
        emitting = {id(request) for request in decoding}
        chunks = [request for request in self.running if id(request) not in emitting]
        num_chunk_rows = min(sum(request.num_uncomputed for request in chunks), (num_rows_left + 1) // 2)
        budgets = self._reserve_drafts(decoding, fit_budgets(budgets, num_rows_left - num_chunk_rows))
        return Selected(decoding, budgets, chunks)

    def _kept(self, decoding: list[Request]) -> list[int]:
        """Indices of those that were not preempted in this step; one that was may be running again, as a chunk."""
        return [index for index, request in enumerate(decoding) if id(request) not in self._preempted]

    def _reserve_known_tokens(self) -> None:
        """Every running request gets slots for its known tokens; the last make room for earlier ones."""
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
        insort(self.waiting, request, key=_rank)
        self._preempted.add(id(request))
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

    def _admit_waiting(self) -> None:
        while self.waiting and self._has_slot(self.waiting[0]) and self._num_rows_left(self.waiting[0]) > 0:
            if not self._admit(self.waiting[0]):
                return

    def _has_slot(self, request: Request) -> bool:
        return len(self.running) < self._max_num_seqs or self.running[-1].priority > request.priority

    def _num_rows_left(self, request: Request) -> int:
        """Rows of the step that those ranking before a waiting request leave to it."""
        taken = sum(each.num_uncomputed for each in self.running if each.rank < request.rank)
        return self._max_num_batched_tokens - taken

    def _admit(self, request: Request) -> bool:
        """Admit if all known tokens fit beside one more block for each running request, displacing lower priorities."""
        read_cache = not request.misses_prompt_logprobs
        hit = self._kv.lookup(request.facts, request.tokens, read_cache)
        num_displaced = self._num_displaced(request, hit)
        if num_displaced is None:
            return False
        for _ in range(num_displaced):
            self._preempt(self.running[-1])
        hit = self._kv.admit(request.facts, request.tokens, read_cache, request.retention)
        self.waiting.pop(0)
        insort(self.running, request, key=_rank)
        request.row = self._kv.row(request.request_id)
        request.write_from = request.num_restored = hit.num_kv_tokens
        request.num_computed = min(hit.num_tokens, max(hit.num_kv_tokens - self._recompute_tail, 0))
        self._on_admit(request)
        is_reserved = self._kv.reserve(request.request_id, request.num_tokens)
        assert is_reserved, f"{request.request_id!r} was admitted and does not fit"
        return True

    def _num_displaced(self, request: Request, hit: PrefixHit) -> int | None:
        """How many of the last running requests must be preempted to admit this one; ``None`` if that cannot be."""

        def fits(num_displaced: int) -> bool:
            num_left = len(self.running) - num_displaced
            ids = [each.request_id for each in self.running[num_left:]]
            return num_left < self._max_num_seqs and self._kv.can_admit(hit, request.num_tokens, num_left, ids)

        if fits(0):
            return 0
        num_lower = sum(each.priority > request.priority for each in self.running)
        if not num_lower or not fits(num_lower):
            return None
        return bisect_left(range(num_lower), True, key=fits)

    # -- place ---------------------------------------------------------------------------------------------------

    def place(self, selected: Selected, drafts: DraftRows) -> Plan:
        """Lay out decodes and drafts; prompt chunks fill the rows that are left, in order of rank."""
        num_rows_left = self._max_num_batched_tokens - len(selected.decoding) - int(drafts.lengths.sum())
        chunks, sizes = [], []
        for request in selected.chunks:
            size = min(request.num_uncomputed, num_rows_left)
            if size <= 0:
                break
            chunks.append(request)
            sizes.append(size)
            num_rows_left -= size
        plan = build_plan(selected.decoding, drafts, chunks, sizes)
        plan.slots = self._kv.slots(plan.table_rows[plan.row_seq], plan.slot_positions)
        return plan
