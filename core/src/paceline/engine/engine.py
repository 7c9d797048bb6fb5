"""The engine: requests in, steps, outputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

import numpy as np

from paceline.api import ReleaseReason, RequestEventKind, RequestFacts, StepOutcome
from paceline.engine.admission import Admission
from paceline.engine.commit import Committed, Committer
from paceline.engine.completion import request_output
from paceline.engine.constraints import Constraints
from paceline.engine.events import EventLog
from paceline.engine.metrics import EngineStats
from paceline.engine.outputs import RequestOutput, StepResult
from paceline.engine.request import FinishReason, Request
from paceline.engine.samples import Samples
from paceline.engine.sampling_table import SamplingTable
from paceline.engine.scheduler import Scheduler
from paceline.engine.speculation import Speculation
from paceline.engine.target_pass import TargetPass
from paceline.engine.verifier import Verifier
from paceline.kv import invariants
from paceline.kv.manager import KVManager
from paceline.kv.retention import NO_RETENTION, Retention
from paceline.sampling.params import SamplingParams

__all__ = ["Engine"]


class Engine:
    """Continuous batching over one target. Not thread-safe: one caller adds, steps and aborts.

    Built by ``paceline.engine.build.build_engine``; it owns every request from ``add_request`` to its end.
    """

    def __init__(
        self,
        *,
        admission: Admission,
        kv: KVManager,
        make_scheduler: Callable[[Callable[[Request], None], Callable[[Request], None]], Scheduler],
        speculation: Speculation,
        constraints: Constraints,
        target: TargetPass,
        table: SamplingTable,
        committer: Committer,
        decode: Callable[[Sequence[int], bool], str],
        events: EventLog,
        clock: Callable[[], float],
    ) -> None:
        self._admission = admission
        self._kv = kv
        self._scheduler = make_scheduler(self._on_preempt, self._on_admit)
        self._speculation = speculation
        self._constraints = constraints
        self._target = target
        self._table = table
        self._verifier = Verifier(table)
        self._committer = committer
        self._decode = decode
        self._events = events
        self._clock = clock
        self._requests: dict[str, Request] = {}
        self._samples = Samples()
        self._checks = os.environ.get("PACELINE_CHECK") == "1"
        self._closed = False
        self.stats = EngineStats()

    # -- requests ------------------------------------------------------------------------------------------------

    def add_request(
        self,
        facts: RequestFacts,
        prompt_token_ids: np.ndarray,
        params: SamplingParams,
        *,
        prompt: str | None = None,
        draft_limit: int | None = None,
        priority: int = 0,
        retention: Retention = NO_RETENTION,
        follows_text: bool = False,
    ) -> None:
        """Queue a request, or refuse it at once. With ``n`` samples it becomes ``n`` requests ``<request id>-<j>``.

        Args:
            facts: Its id, salt, trust domain and metadata.
            prompt_token_ids: int64 ``[num_prompt_tokens]``.
            params: How to choose tokens.
            prompt: The text that the tokens came from.
            draft_limit: Most tokens it may draft in a step; 0 = none, ``None`` = the engine's own.
            priority: The lower, the sooner it is served; it displaces running requests of a higher number.
            retention: What it asks of the cache for its blocks.
            follows_text: Whether steps give its text as it grows.

        Raises:
            RequestError: if it can never be served.
        """
        requests = self._admission.requests(
            facts,
            prompt_token_ids,
            params,
            prompt,
            draft_limit,
            lambda request_id: request_id in self._requests or request_id in self._samples.groups,
            self._clock(),
            follows_text,
        )
        for request in requests:
            request.priority, request.retention = priority, retention
        if len(requests) > 1:
            self._samples.open(facts.request_id, requests)
        self._scheduler.add(requests[0])
        for request in requests:
            self._requests[request.request_id] = request
            self._events.request(RequestEventKind.ADDED, request)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now; an unknown or ended id is fine and gives ``None``."""
        return next(iter(self.abort_all([request_id])), None)

    def abort_all(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End the live ones among these requests now, then tell the plugins."""
        ids = dict.fromkeys(member for request_id in request_ids for member in self._samples.members(request_id))
        requests = [self._requests[request_id] for request_id in ids if request_id in self._requests]
        now_s = self._clock()
        for request in requests:
            request.finish_reason = FinishReason.ABORT
        outputs = self._end(requests, now_s)
        self.stats.num_aborted += len(requests)
        if requests:
            self._release(requests, ReleaseReason.ABORTED)
        for request in requests:
            self._events.request(RequestEventKind.ABORTED, request)
        return outputs

    def output(self, request_id: str) -> RequestOutput:
        """A live request as it stands.

        Raises:
            KeyError: if no such request is live.
        """
        if request_id not in self._samples.groups:
            return request_output(self._requests[request_id], self._decode)
        live = [self._requests[member] for member in self._samples.members(request_id) if member in self._requests]
        return self._samples.output(request_id, [request_output(request, self._decode) for request in live])

    def sample_ids(self, request_id: str) -> list[str]:
        """Ids of a request's samples, which ``step`` tells of; its own id where it has one sample."""
        return self._samples.members(request_id)

    def reset_prefix_cache(self) -> bool:
        """Forget everything cached; see ``LLM.reset_prefix_cache``."""
        self._kv.reset()
        if self._checks:
            invariants.check(self._kv)
        return self._kv.num_used == 0

    @property
    def num_waiting(self) -> int:
        """Requests not admitted."""
        return len(self._scheduler.waiting)

    @property
    def num_running(self) -> int:
        """Requests admitted."""
        return len(self._scheduler.running)

    @property
    def has_requests(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._requests)

    @property
    def kv(self) -> KVManager:
        """The block bookkeeping: gauges and invariants."""
        return self._kv

    def close(self) -> None:
        """Abort what is live and close the plugins, once."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as stack:  # one that raises does not keep the others open
            stack.callback(self._events.close)
            stack.callback(self._speculation.close)
            stack.callback(self._constraints.close)
            self.abort_all(list(self._requests))

    # -- the step ------------------------------------------------------------------------------------------------

    def step(self) -> StepResult:
        """Advance every running request: one proposer call, one target pass, one verification.

        Raises:
            PacelineError: from a plugin, naming it. The requests stay whole: those that have ended are gone, the others
                can go on or be aborted.
        """
        started_s = self._clock()
        decoding = self._scheduler.decoding()
        budgets = self._speculation.budgets(decoding, self.num_waiting)
        selected = self._scheduler.select(decoding, budgets)
        self._committer.copy_blocks()
        if not selected.decoding and not selected.chunks:
            assert not self._requests, "requests are live and the scheduler selected none: nobody would ever advance"
            return StepResult()
        drafts = self._speculation.propose(selected)
        plan = self._scheduler.place(selected, drafts)
        drafted_s = self._clock()
        output = self._target.forward(plan)
        outcome = self._verifier.verify(plan, output)
        verified_s = self._clock()
        committed = self._committer.commit(plan, outcome)
        result = self._retire(committed)
        committed_s = self._clock()
        self._speculation.observe(committed, output)
        draft_time_s = drafted_s - started_s + self._clock() - committed_s
        self.stats.forward_time_s += output.forward_time_s
        self._report(committed, draft_time_s, verified_s - drafted_s)
        return result

    def _retire(self, committed: Committed) -> StepResult:
        """Count what was emitted and end what has ended, before a plugin hears of it and may raise."""
        now_s = self._clock()
        result = StepResult()
        for request, count in zip(committed.plan.emitting, committed.outcome.num_emitted.tolist(), strict=True):
            _add_new_text(request, result)
            if count:
                self._queue_freed(request)
                result.new_tokens[request.request_id] = request.tokens[request.num_tokens - count :]
                request.metrics.record_emission(count, now_s)
                self.stats.num_generated_tokens += count
        self._count_drafts(committed)
        result.finished = self._end(committed.finished, now_s)
        if self._checks:
            invariants.check(self._kv)
        return result

    def _count_drafts(self, committed: Committed) -> None:
        """Counts every verify step with at least one draft, per request and in sum."""
        lengths, accepted = committed.plan.drafts.lengths, committed.outcome.num_accepted
        for index in np.flatnonzero(lengths):
            committed.plan.requests[index].metrics.record_drafts(int(lengths[index]), int(accepted[index]))
        self.stats.num_steps += 1
        self.stats.num_draft_tokens += int(lengths.sum())
        self.stats.num_accepted_tokens += int(accepted.sum())

    def _end(self, requests: Sequence[Request], now_s: float) -> list[RequestOutput]:
        """Take requests out; those whose group has others left have no output of their own."""
        outputs = []
        for request in requests:
            self._queue_freed(request)
            self._scheduler.remove(request)
            del self._requests[request.request_id]
            request.metrics.finished_time_s = now_s
            output = self._samples.end(request_output(request, self._decode))
            if output is not None:
                outputs.append(output)
        return outputs

    def _queue_freed(self, request: Request) -> None:
        """Queue the samples that waited for the prompt that this one has computed, or never will."""
        for freed in self._samples.freed_by(request):
            self._scheduler.add(freed)

    def _report(self, committed: Committed, draft_time_s: float, verify_time_s: float) -> None:
        """Tell those who watch what the step cost and brought, and which requests ended."""
        plan, outcome = committed.plan, committed.outcome
        for request in plan.requests:
            request.metrics.draft_time_s += draft_time_s
            request.metrics.verify_time_s += verify_time_s
        self.stats.draft_time_s += draft_time_s
        self.stats.verify_time_s += verify_time_s
        drafted = np.flatnonzero(plan.drafts.lengths)
        step = StepOutcome(
            request_ids=tuple(plan.requests[index].request_id for index in drafted),
            drafted=plan.drafts.lengths[drafted],
            accepted=outcome.num_accepted[drafted],
            num_rows=plan.num_rows,
            draft_time_s=draft_time_s,
            verify_time_s=verify_time_s,
            num_prompt_rows=int(plan.counts[plan.num_decoding :].sum()),
        )
        self._speculation.report(step)
        if committed.finished:
            self._release(committed.finished, ReleaseReason.FINISHED)
        for request in committed.finished:
            self._events.request(RequestEventKind.FINISHED, request)
        self._events.step(step, len(plan.requests), int(outcome.num_emitted.sum()))
        self._events.flush(self.num_running, self.num_waiting)

    def _release(self, requests: Sequence[Request], reason: ReleaseReason) -> None:
        """Let the plugins that keep state for these requests forget them."""
        request_ids = tuple(request.request_id for request in requests)
        self._speculation.release(request_ids, reason)
        self._constraints.release(request_ids, reason)

    # -- what the scheduler tells --------------------------------------------------------------------------------

    def _on_admit(self, request: Request) -> None:
        self._table.write(request)
        metrics = request.metrics
        if metrics.first_scheduled_time_s is None:
            metrics.first_scheduled_time_s = self._clock()
            metrics.num_cached_tokens = request.num_computed
        self._events.request(RequestEventKind.ADMITTED, request)

    def _on_preempt(self, request: Request) -> None:
        self.stats.num_preemptions += 1
        self._release([request], ReleaseReason.PREEMPTED)
        self._events.request(RequestEventKind.PREEMPTED, request)


def _add_new_text(request: Request, result: StepResult) -> None:
    if request.text is not None:
        if request.finish_reason is not None:
            request.text.finish()
        result.new_text[request.request_id] = request.text.take_new()
