"""Writes what it saw into a file when the engine closes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from paceline.api import (
    KVEvent,
    KVEventKind,
    Observer,
    ObserverCapabilities,
    ObserverContext,
    ObserverSpec,
    RequestEvent,
    RequestEventKind,
    StepEvent,
    TargetFacts,
    hookimpl,
)


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    output: Path


class Counting(Observer):
    def __init__(self, options: Options, context: ObserverContext) -> None:
        self.output = options.output
        self.seen: Counter[str] = Counter(vocabulary=context.target.vocab_size)
        self.reasons: set[str] = set()

    def on_step(self, event: StepEvent) -> None:
        assert event.num_rows >= event.num_requests and event.draft_time_s + event.verify_time_s >= 0.0
        self.seen.update(
            steps=1,
            emitted=event.num_emitted,
            drafted=event.num_drafted,
            accepted=event.num_accepted,
            waiting=event.num_waiting,
        )
        self.seen["last step"] = event.index
        self.seen["running"] = event.num_running

    def on_requests(self, events: Sequence[RequestEvent]) -> None:
        for event in events:
            self.seen[f"{event.kind} {event.num_tokens}"] += 1
            if event.kind == RequestEventKind.ADMITTED:
                self.seen["cached"] += event.num_cached_tokens
            if event.kind == RequestEventKind.FINISHED:
                self.reasons.add(event.reason)

    def on_kv(self, events: Sequence[KVEvent]) -> None:
        for event in events:
            assert len(event.block_ids) == len(event.keys) and all(len(key) == 32 for key in event.keys)
            self.seen["stored"] += len(event.keys) if event.kind == KVEventKind.STORED else 0

    def close(self) -> None:
        self.output.write_text(json.dumps({**self.seen, "reasons": sorted(self.reasons)}), encoding="utf-8")


def describe(options: Options, target: TargetFacts) -> ObserverCapabilities:
    return ObserverCapabilities(steps=True, requests=True, kv=True)


@hookimpl
def paceline_observers() -> list[ObserverSpec]:
    return [
        ObserverSpec(
            name="frozen_observer_0_1",
            summary="Counts",
            options=Options,
            requires_api=">=0.1,<0.2",
            describe=describe,
            build=Counting,
        )
    ]
