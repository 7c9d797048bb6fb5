"""Observers: they watch. One call per step and kind at most, never per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from paceline.api.facts import TargetFacts
from paceline.api.specs import Spec

__all__ = [
    "KVEvent",
    "KVEventKind",
    "Observer",
    "ObserverCapabilities",
    "ObserverContext",
    "ObserverSpec",
    "RequestEvent",
    "RequestEventKind",
    "StepEvent",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """One step of the engine.

    Attributes:
        index: Number of the step, from 0.
        num_rows: Rows of the target pass.
        num_requests: Requests in it.
        num_running: Admitted requests after the step.
        num_waiting: Waiting requests after the step.
        num_drafted: Draft tokens verified.
        num_accepted: Of them accepted.
        num_emitted: Tokens emitted.
        draft_time_s: Time in the proposer.
        verify_time_s: Time in the target pass and the verifier.
    """

    index: int
    num_rows: int
    num_requests: int
    num_running: int
    num_waiting: int
    num_drafted: int
    num_accepted: int
    num_emitted: int
    draft_time_s: float
    verify_time_s: float


class RequestEventKind(StrEnum):
    """What happened to a request."""

    ADDED = "added"
    ADMITTED = "admitted"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEvent:
    """A change in a request's life.

    Attributes:
        kind: What happened.
        request_id: The request.
        num_tokens: Its tokens then, prompt and output.
        num_cached_tokens: For ``ADMITTED``: tokens taken from the prefix cache.
        reason: For ``FINISHED``: the finish reason.
    """

    kind: RequestEventKind
    request_id: str
    num_tokens: int
    num_cached_tokens: int = 0
    reason: str = ""


class KVEventKind(StrEnum):
    """What happened to a cached block."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEvent:
    """A change of the prefix index.

    Attributes:
        kind: What happened.
        block_ids: The blocks.
        keys: Their 32-byte keys, in the same order.
    """

    kind: KVEventKind
    block_ids: tuple[int, ...]
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverCapabilities:
    """Which kinds of events an observer wants; those nobody wants are not made."""

    steps: bool = True
    requests: bool = False
    kv: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverContext:
    """What an observer is built with: the target's facts."""

    target: TargetFacts


class Observer:
    """Watches the engine. It must not raise; an error in it stops the step with the observer's name."""

    def on_step(self, event: StepEvent) -> None:
        """After each step."""

    def on_requests(self, events: Sequence[RequestEvent]) -> None:
        """After each step in which requests changed."""

    def on_kv(self, events: Sequence[KVEvent]) -> None:
        """After each step in which the prefix index changed."""

    def close(self) -> None:
        """Called once, when the engine closes."""


ObserverSpec = Spec[ObserverCapabilities, ObserverContext, Observer]
