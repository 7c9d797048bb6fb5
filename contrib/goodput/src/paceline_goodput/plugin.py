"""The entry point: options and hook."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from paceline.api import ControllerCapabilities, ControllerContext, ControllerSpec, TargetFacts, hookimpl
from paceline_goodput.controller import GoodputController

__all__ = ["GoodputOptions", "paceline_speculation_controllers"]


class GoodputOptions(BaseModel):
    """``goodput`` has no options of its own: it measures, up to the engine's ``num_speculative_tokens``."""

    model_config = ConfigDict(extra="forbid")


def _describe(options: GoodputOptions, target: TargetFacts) -> ControllerCapabilities:
    return ControllerCapabilities(every_step=True)


def _build(options: GoodputOptions, context: ControllerContext) -> GoodputController:
    return GoodputController(context.max_tokens)


@hookimpl
def paceline_speculation_controllers() -> tuple[ControllerSpec, ...]:
    """Declare the controller ``goodput``."""
    return (
        ControllerSpec(
            name="goodput",
            summary="Drafts what makes the requests the fastest, by measured cost and acceptance",
            options=GoodputOptions,
            requires_api=">=0.1.1,<0.2",
            describe=_describe,
            build=_build,
        ),
    )
