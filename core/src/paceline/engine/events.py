"""Events for observers: collected over a step and delivered once, and only the kinds that somebody wants."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.api import (
    Observer,
    ObserverCapabilities,
    RequestEvent,
    RequestEventKind,
    StepEvent,
    StepOutcome,
)
from paceline.engine.request import Request
from paceline.host.loading import Loaded
from paceline.kv.manager import KVManager

__all__ = ["EventLog", "Watcher"]


@dataclass(slots=True)
class Watcher:
    """An observer, its plugin and the kinds it wants."""

    plugin: Loaded
    observer: Observer
    wants: ObserverCapabilities


class EventLog:
    """Collects and delivers. Without observers every method returns at once."""

    def __init__(self, watchers: list[Watcher], kv: KVManager) -> None:
        self._watchers = watchers
        self._kv = kv
        self._wants_requests = any(watcher.wants.requests for watcher in watchers)
        self._wants_steps = any(watcher.wants.steps for watcher in watchers)
        self._wants_kv = any(watcher.wants.kv for watcher in watchers)
        self._requests: list[RequestEvent] = []
        self._step: tuple[StepOutcome, int, int] | None = None
        self._num_steps = 0

    def request(self, kind: RequestEventKind, request: Request) -> None:
        """Note a change in a request's life."""
        if self._wants_requests:
            event = RequestEvent(
                kind=kind,
                request_id=request.request_id,
                num_tokens=request.num_tokens,
                num_cached_tokens=request.num_computed if kind is RequestEventKind.ADMITTED else 0,
                reason=request.finish_reason or "",
            )
            self._requests.append(event)

    def step(self, outcome: StepOutcome, num_requests: int, num_emitted: int) -> None:
        """Note the step."""
        self._step = (outcome, num_requests, num_emitted)

    def flush(self, num_running: int, num_waiting: int) -> None:
        """Deliver what was noted since the last call."""
        if not self._watchers:
            return
        if self._wants_steps:
            event = self._step_event(num_running, num_waiting)
            for watcher in self._wanting("steps"):
                with watcher.plugin.boundary("on_step"):
                    watcher.observer.on_step(event)
        self._num_steps += 1
        self._deliver_requests()
        self._deliver_kv()

    def _step_event(self, num_running: int, num_waiting: int) -> StepEvent:
        assert self._step is not None, "flush() before step()"
        outcome, num_requests, num_emitted = self._step
        return StepEvent(
            index=self._num_steps,
            num_rows=outcome.num_rows,
            num_requests=num_requests,
            num_running=num_running,
            num_waiting=num_waiting,
            num_drafted=int(outcome.drafted.sum()),
            num_accepted=int(outcome.accepted.sum()),
            num_emitted=num_emitted,
            draft_time_s=outcome.draft_time_s,
            verify_time_s=outcome.verify_time_s,
        )

    def _deliver_requests(self) -> None:
        events, self._requests = tuple(self._requests), []
        if events:
            for watcher in self._wanting("requests"):
                with watcher.plugin.boundary("on_requests"):
                    watcher.observer.on_requests(events)

    def _deliver_kv(self) -> None:
        events = tuple(self._kv.drain_events()) if self._wants_kv else ()
        if events:
            for watcher in self._wanting("kv"):
                with watcher.plugin.boundary("on_kv"):
                    watcher.observer.on_kv(events)

    def _wanting(self, kind: str) -> list[Watcher]:
        return [watcher for watcher in self._watchers if getattr(watcher.wants, kind)]

    def close(self) -> None:
        """Deliver what is left of requests' and blocks' events, then close the observers."""
        self._deliver_requests()
        self._deliver_kv()
        for watcher in self._watchers:
            with watcher.plugin.boundary("close"):
                watcher.observer.close()
