from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.api import KVEventKind, Observer, ObserverCapabilities, RequestEventKind


class Watching(Observer):
    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.requests: list[Any] = []
        self.kv: list[Any] = []
        self.num_closed = 0

    def on_step(self, event: Any) -> None:
        self.steps.append(event)

    def on_requests(self, events: Any) -> None:
        self.requests.append(events)

    def on_kv(self, events: Any) -> None:
        self.kv.append(events)

    def close(self) -> None:
        self.num_closed += 1


@pytest.fixture
def watched(harness: Callable[..., Any]) -> Callable[..., Any]:
    """``(*wants, **options) -> (harness, one observer for each)``."""

    def build(*wants: dict[str, bool], **options: Any) -> tuple[Any, list[Watching]]:
        observers = [(Watching(), ObserverCapabilities(**{"steps": False, **want})) for want in wants]
        return harness(observers=observers, **options), [observer for observer, _ in observers]

    return build


def test_each_gets_the_kinds_that_it_wants_and_no_others(watched: Callable[..., Any]) -> None:
    engine, watching = watched({"steps": True}, {"requests": True}, {"kv": True}, {})
    engine.add([1] * 9, max_tokens=3)
    engine.run()
    engine.engine.close()

    heard = [(bool(each.steps), bool(each.requests), bool(each.kv)) for each in watching]
    assert heard == [(True, False, False), (False, True, False), (False, False, True), (False, False, False)]
    assert [each.num_closed for each in watching] == [1] * 4


def test_kinds_that_nobody_wants_are_not_made(watched: Callable[..., Any]) -> None:
    engine, _ = watched({"steps": True})
    engine.add([1] * 9, max_tokens=3)
    assert engine.engine._events._requests == []
    engine.step()
    assert engine.kv.drain_events() == []


def test_steps_count_rows_requests_drafts_and_tokens(watched: Callable[..., Any], fake: Any) -> None:
    engine, (watching,) = watched({"steps": True}, draft=fake.right_drafts, max_num_seqs=2, max_num_batched_tokens=8)
    for _ in range(3):
        engine.add([1, 2, 3, 4, 5], max_tokens=4)
    engine.run()
    first, second = watching.steps[:2]

    assert [event.index for event in watching.steps] == list(range(len(watching.steps)))
    assert (first.num_rows, first.num_requests, first.num_running, first.num_waiting) == (8, 2, 2, 1)
    assert (first.num_drafted, first.num_accepted, first.num_emitted) == (0, 0, 1)
    # The first decodes with three drafts and ends (its fourth token is the target's own), the second ends its prompt.
    assert (second.num_rows, second.num_drafted, second.num_accepted, second.num_emitted) == (5, 2, 2, 4)
    assert sum(event.num_emitted for event in watching.steps) == 12
    assert all(event.draft_time_s > 0 and event.verify_time_s > 0 for event in watching.steps)


def test_the_life_of_a_request(watched: Callable[..., Any]) -> None:
    engine, (watching,) = watched({"requests": True})
    engine.add([1] * 9, "a", max_tokens=2)
    engine.run()
    engine.add([1] * 9, "b", max_tokens=2)
    engine.step()
    engine.abort("b")
    engine.add([2], "c", max_tokens=1)
    engine.run()
    events = [event for delivered in watching.requests for event in delivered]

    kinds = RequestEventKind
    assert [(event.request_id, event.kind) for event in events] == [
        *(("a", kinds.ADDED), ("a", kinds.ADMITTED), ("a", kinds.FINISHED)),
        *(("b", kinds.ADDED), ("b", kinds.ADMITTED), ("b", kinds.ABORTED)),
        *(("c", kinds.ADDED), ("c", kinds.ADMITTED), ("c", kinds.FINISHED)),
    ]
    assert [event.num_tokens for event in events] == [9, 9, 11, 9, 9, 10, 1, 1, 2]
    assert [event.num_cached_tokens for event in events] == [0, 0, 0, 0, 8, 0, 0, 0, 0]
    assert [event.reason for event in events if event.reason] == ["length", "abort", "length"]
    assert len(watching.requests) == 4, "at most one delivery a step"


def test_a_preemption_is_told(watched: Callable[..., Any]) -> None:
    engine, (watching,) = watched({"requests": True}, num_blocks=5, block_size=4)
    for prompt in ([1] * 5, [2] * 5):
        engine.add(prompt, max_tokens=8)
    engine.run()
    kinds = [event.kind for delivered in watching.requests for event in delivered if event.request_id == "r1"]
    assert kinds[:4] == ["added", "admitted", "preempted", "admitted"] and kinds[-1] == "finished"


def test_kv_events_tell_what_the_index_holds(watched: Callable[..., Any]) -> None:
    engine, (watching,) = watched({"kv": True}, num_blocks=4, block_size=4)
    for token in (1, 2, 3):
        engine.add([token] * 9, max_tokens=2)
        engine.run()
    resident: set[bytes] = set()
    for event in [event for delivered in watching.kv for event in delivered]:
        assert event.kind is not KVEventKind.CLEARED
        resident = resident | set(event.keys) if event.kind is KVEventKind.STORED else resident - set(event.keys)
    assert resident == {entry.key for entry in engine.kv.cache.index.entries} and resident


def test_what_is_delivered_cannot_be_changed(watched: Callable[..., Any]) -> None:
    engine, (watching,) = watched({"requests": True, "kv": True})
    engine.add([1] * 9, max_tokens=1)
    engine.run()
    assert all(isinstance(delivered, tuple) for delivered in watching.requests + watching.kv)


def test_what_came_after_the_last_step_is_told_at_the_end(watched: Callable[..., Any]) -> None:
    engine, (watching,) = watched({"requests": True})
    engine.add([1], "a")
    engine.engine.close()
    engine.engine.close()
    assert [event.kind for event in watching.requests[0]] == ["added", "aborted"] and watching.num_closed == 1
