"""Drafts less while drafts are refused, and drops nodes of little confidence."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from paceline.api import (
    ControllerCapabilities,
    ControllerContext,
    ControllerSpec,
    Drafts,
    EngineState,
    SpeculationController,
    StepOutcome,
    TargetFacts,
    hookimpl,
)


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    most: int = 2


class Careful(SpeculationController):
    def __init__(self, options: Options, context: ControllerContext) -> None:
        self.most = min(options.most, context.max_tokens, context.target.max_model_len)
        self.num_refused = 0
        self.time_s = 0.0

    def budgets(self, state: EngineState) -> np.ndarray:
        crowded = state.num_waiting > len(state.request_ids) or state.free_block_ratio < 0.05
        wanted = np.where(state.accepted * 4 < state.drafted - 32, 1, self.most)
        return np.minimum(state.limits, np.where(crowded, 0, wanted))

    def trim(self, drafts: Drafts, state: EngineState) -> np.ndarray:
        lengths = np.asarray(drafts.lengths)
        if drafts.confidence is None:
            return lengths
        unsure = np.asarray(drafts.confidence) < 0.1
        return np.where(unsure.any(axis=1), np.minimum(lengths, unsure.argmax(axis=1)), lengths)

    def observe(self, outcome: StepOutcome) -> None:
        assert len(outcome.request_ids) <= outcome.num_rows
        self.num_refused += int((outcome.drafted - outcome.accepted).sum())
        self.time_s += outcome.draft_time_s + outcome.verify_time_s


def describe(options: Options, target: TargetFacts) -> ControllerCapabilities:
    return ControllerCapabilities()


@hookimpl
def paceline_speculation_controllers() -> list[ControllerSpec]:
    return [
        ControllerSpec(
            name="frozen_controller_0_1",
            summary="Short drafts after refusals",
            options=Options,
            requires_api=">=0.1,<0.2",
            describe=describe,
            build=Careful,
        )
    ]
