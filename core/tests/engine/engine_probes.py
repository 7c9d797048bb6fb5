"""The module of the distribution ``paceline-engine-probes``: plugins that record, and that raise on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from paceline.api import (
    Command,
    CommandContext,
    CommandSpec,
    CommittedBatch,
    ControllerCapabilities,
    ControllerSpec,
    Drafts,
    EngineState,
    FieldValue,
    Generation,
    IdentityCapabilities,
    IdentityContributor,
    IdentityContributorSpec,
    KVGroup,
    Observer,
    ObserverCapabilities,
    ObserverSpec,
    PluginError,
    ProposeBatch,
    Proposer,
    ProposerCapabilities,
    ProposerContext,
    ProposerSpec,
    RequestFacts,
    RequestView,
    Spec,
    SpeculationController,
    TargetFacts,
    chain_lookahead,
    hookimpl,
)

API = ">=0.1,<0.2"
built: list[Any] = []


class Options(BaseModel):
    """``truth``: whole sequences; ``right``: how many of the drafts are right; ``raises``: the method that raises."""

    model_config = ConfigDict(extra="forbid")

    truth: list[list[int]] = []
    right: int = 99
    recompute_tail: int = 0
    raises: str = ""
    kept: int = 1


class Recorder(Proposer):
    """Drafts from the truth and keeps what it is told; raises where it was asked to."""

    def __init__(self, options: Options, context: ProposerContext) -> None:
        self.options = options
        self.observed: list[CommittedBatch] = []
        self.num_raised = 0

    def propose(self, batch: ProposeBatch) -> Drafts:
        self._raise_in("propose")
        return Drafts.from_lists([self.drafts(r, int(n)) for r, n in zip(batch.requests, batch.budgets, strict=True)])

    def drafts(self, request: RequestView, budget: int) -> list[int]:
        known = request.tokens.tolist()
        whole = next((truth for truth in self.options.truth if truth[: len(known)] == known), [])
        rest = whole[len(known) :][:budget]
        return [token if index < self.options.right else (token + 1) % 64 for index, token in enumerate(rest)]

    def observe(self, committed: CommittedBatch) -> None:
        self.observed.append(committed)
        self._raise_in("observe")

    def release(self, request_ids: tuple[str, ...], reason: Any) -> None:
        self._raise_in("release")

    def close(self) -> None:
        self._raise_in("close")

    def _raise_in(self, hook: str) -> None:
        if self.options.raises == hook and not self.num_raised:
            self.num_raised += 1
            raise ZeroDivisionError("on purpose")


class Paged(Proposer):
    """Has the target's weights on blocks of its own; ``on_propose(batch)`` is the test's."""

    def __init__(self, options: Options, context: ProposerContext) -> None:
        self.context = context
        self.model = context.load_model("target", "paged")
        self.on_propose: Callable[[ProposeBatch], Drafts] = lambda batch: Drafts.empty(len(batch.requests))
        self.on_observe: Callable[[CommittedBatch], None] = lambda committed: None

    def propose(self, batch: ProposeBatch) -> Drafts:
        return self.on_propose(batch)

    def observe(self, committed: CommittedBatch) -> None:
        self.on_observe(committed)


class Trimming(SpeculationController):
    def __init__(self, options: Options, context: Any) -> None:
        self.options = options

    def budgets(self, state: EngineState) -> np.ndarray:
        return state.limits

    def trim(self, drafts: Drafts, state: EngineState) -> np.ndarray:
        return np.minimum(np.asarray(drafts.lengths), self.options.kept)


class Watching(Observer):
    def __init__(self, options: Options, context: Any) -> None:
        self.options = options

    def on_step(self, event: Any) -> None:
        if self.options.raises == "on_step":
            raise ZeroDivisionError("on purpose")


class Tenant(IdentityContributor):
    """Requests of one ``tenant`` share KV; those without one are a space of their own."""

    def __init__(self, options: Options, context: Any) -> None:
        self.options = options

    def request_fields(self, request: RequestFacts) -> Mapping[str, FieldValue]:
        if self.options.raises == "request_fields":
            raise ZeroDivisionError("on purpose")
        return {"tenant": request.metadata.get("tenant")}


class TrainOptions(BaseModel):
    """Of every form that a flag may have."""

    target: str = Field(description="Model to train for.")
    output: Path = Field(description="Where the result goes.")
    num_rounds: int = Field(default=2, ge=1, description="How often, up to 100%.")
    shape: Literal["chain", "tree"] = "chain"
    keep: bool = Field(default=True, description="Whether to keep it.")
    layers: list[int] = Field(default_factory=list, description="Layers to read.")
    note: str | None = None


class Training(Command):
    """Writes what it was given, and what the target says."""

    def __init__(self, options: TrainOptions, context: CommandContext) -> None:
        self.options = options
        self.context = context

    def run(self) -> None:
        if self.options.num_rounds == 13:
            raise PluginError("13 rounds bring bad luck; give another number")
        ended: list[tuple[int, Generation]] = []
        with self.context.open(self.options.target, max_model_len=64, numerics="exact") as session:
            ids = torch.arange(4)
            found = {
                "options": self.options.model_dump(mode="json"),
                "layers": session.facts.num_layers,
                "tokens": [
                    list(generation.token_ids)
                    for generation in session.generate(
                        [[1, 2], [3]],
                        max_tokens=5,
                        temperature=1.0,
                        seed=7,
                        on_finished=lambda index, own: ended.append((index, own)),
                    )
                ],
                "logits": list(session.logits(session.embed(ids)).shape),
                "norm": session.open_checkpoint()["model.norm.weight"].tolist()[:3],
            }
        found["ended"] = sorted((index, list(own.token_ids)) for index, own in ended)
        self.options.output.write_text(json.dumps(found))


def _spec(kind: Any, name: str, made: type, describe: Callable[[Options, TargetFacts], Any]) -> Spec[Any, Any, Any]:
    def build(options: Options, context: Any) -> Any:
        built.append(made(options, context))
        return built[-1]

    return kind(name=name, summary=name, options=Options, requires_api=API, describe=describe, build=build)


def _recorded(options: Options, target: TargetFacts) -> ProposerCapabilities:
    return ProposerCapabilities(
        max_tokens=16, hidden_layers=(0, 1, "final"), target_top_k=3, recompute_tail=options.recompute_tail
    )


def _paged(options: Options, target: TargetFacts) -> ProposerCapabilities:
    group = KVGroup(
        name="paged",
        num_layers=target.num_layers,
        num_kv_heads=target.config["num_key_value_heads"],
        key_size=target.hidden_size // target.config["num_attention_heads"],
        value_size=target.hidden_size // target.config["num_attention_heads"],
        dtype=target.dtype,
        fingerprint=target.weights_fingerprint,
    )
    return ProposerCapabilities(max_tokens=16, lookahead_slots=chain_lookahead, kv_groups=(group,))


@hookimpl
def paceline_proposers() -> list[Any]:
    return [_spec(ProposerSpec, "recorder", Recorder, _recorded), _spec(ProposerSpec, "paged", Paged, _paged)]


@hookimpl
def paceline_speculation_controllers() -> list[Any]:
    return [_spec(ControllerSpec, "trimming", Trimming, lambda options, target: ControllerCapabilities())]


@hookimpl
def paceline_observers() -> list[Any]:
    return [_spec(ObserverSpec, "watching", Watching, lambda options, target: ObserverCapabilities(requests=True))]


@hookimpl
def paceline_cache_identity() -> list[Any]:
    return [_spec(IdentityContributorSpec, "tenant", Tenant, lambda options, target: IdentityCapabilities())]


@hookimpl
def paceline_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="train",
            summary="Writes a file",
            options=TrainOptions,
            requires_api=API,
            build=lambda options, context: Training(options, context),
        )
    ]
