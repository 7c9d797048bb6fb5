"""The controller ``fixed``: every request drafts as many tokens as the configuration says. Built in as a plugin."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from pydantic import BaseModel, ConfigDict

from paceline.api import (
    ControllerCapabilities,
    ControllerContext,
    ControllerSpec,
    EngineState,
    SpeculationController,
    TargetFacts,
    hookimpl,
)

__all__ = ["Fixed", "FixedOptions", "paceline_speculation_controllers"]


class FixedOptions(BaseModel):
    """``fixed`` has no options of its own: the draft length is the engine's ``num_speculative_tokens``."""

    model_config = ConfigDict(extra="forbid")


class Fixed(SpeculationController):
    """Grants each request the configured draft length, within its limit."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens

    def budgets(self, state: EngineState) -> np.ndarray:
        return np.minimum(state.limits, self._max_tokens)


def _describe(options: FixedOptions, target: TargetFacts) -> ControllerCapabilities:
    return ControllerCapabilities()


def _build(options: FixedOptions, context: ControllerContext) -> Fixed:
    return Fixed(context.max_tokens)


@hookimpl
def paceline_speculation_controllers() -> Iterable[ControllerSpec]:
    """Declare ``fixed``."""
    return [
        ControllerSpec(
            name="fixed",
            summary="a constant draft length for every request",
            options=FixedOptions,
            requires_api=">=0.1,<0.2",
            describe=_describe,
            build=_build,
        )
    ]
