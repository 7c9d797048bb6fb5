"""An observer that counts, and what it becomes by one fault each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.api import (
    KVEvent,
    KVEventKind,
    Observer,
    ObserverCapabilities,
    RequestEvent,
    RequestEventKind,
    StepEvent,
    TargetFacts,
)


class Counting(Observer):
    """No fault: counts steps, live requests and blocks."""

    def __init__(self, context: Any) -> None:
        self.num_steps = 0
        self.live: set[str] = set()
        self.num_blocks = 0

    @classmethod
    def capabilities(cls, target: TargetFacts) -> ObserverCapabilities:
        return ObserverCapabilities(steps=True, requests=True, kv=True)

    def on_step(self, event: StepEvent) -> None:
        self.num_steps += 1

    def on_requests(self, events: Sequence[RequestEvent]) -> None:
        for event in events:
            self.on_request(event)

    def on_request(self, event: RequestEvent) -> None:
        if event.kind in (RequestEventKind.FINISHED, RequestEventKind.ABORTED):
            self.live.discard(event.request_id)
        else:
            self.live.add(event.request_id)

    def on_kv(self, events: Sequence[KVEvent]) -> None:
        self.num_blocks += sum(len(event.block_ids) for event in events)


class NeverAborted(Counting):
    """does not know that requests are aborted"""

    def on_request(self, event: RequestEvent) -> None:
        {"added": 1, "admitted": 2, "preempted": 3, "finished": 4}[event.kind]
        super().on_request(event)


class NeverPreempted(Counting):
    """does not know that requests are preempted"""

    def on_request(self, event: RequestEvent) -> None:
        {"added": 1, "admitted": 2, "aborted": 3, "finished": 4}[event.kind]
        super().on_request(event)


class NeverRemoved(Counting):
    """does not know that blocks go"""

    def on_kv(self, events: Sequence[KVEvent]) -> None:
        assert all(event.kind is KVEventKind.STORED for event in events)


class NeverIdle(Counting):
    """divides by the number of steps in the end"""

    def close(self) -> None:
        self.num_blocks //= self.num_steps


class Alone(Counting):
    """is one object for all engines"""

    one: Alone | None = None

    def __new__(cls, context: Any) -> Alone:
        cls.one = cls.one or super().__new__(cls)
        return cls.one


class Unheard(Counting):
    """asks for steps alone, and has methods for all"""

    @classmethod
    def capabilities(cls, target: TargetFacts) -> ObserverCapabilities:
        return ObserverCapabilities()


class Leaks(Counting):
    """keeps every event of a request"""

    def on_request(self, event: RequestEvent) -> None:
        self.events: list[RequestEvent] = [*getattr(self, "events", []), event]


HONEST = Counting
CAUGHT_BY = {
    NeverAborted: "test_requests_that_are_aborted",
    NeverPreempted: "test_requests_that_are_preempted",
    NeverRemoved: "test_blocks_that_are_evicted_and_cleared",
    NeverIdle: "test_engines_that_do_nothing",
    Alone: "test_two_engines_at_once",
    Unheard: "test_wants_what_it_takes",
    Leaks: "test_memory_does_not_grow",
}
