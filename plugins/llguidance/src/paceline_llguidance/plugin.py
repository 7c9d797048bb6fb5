"""The entry point: options and hook."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from paceline.api import (
    Constraint,
    ConstraintCapabilities,
    ConstraintContext,
    ConstraintSpec,
    TargetFacts,
    hookimpl,
)

__all__ = ["LLGuidanceOptions", "paceline_constraints"]

KINDS = frozenset({"json", "json_object", "regex", "choice", "grammar"})


class LLGuidanceOptions(BaseModel):
    """How JSON is laid out, and how many grammars are kept."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    whitespace: Literal["bounded", "compact", "flexible"] = Field(
        default="bounded",
        description="White space between the tokens of JSON where a request does not say: bounded (a space, or a "
        "newline and up to 20 spaces), compact (none), or flexible (any amount, without end).",
    )
    max_cached_grammars: int = Field(
        default=64,
        ge=1,
        description="Compiled grammars that are kept for the next request that asks the same.",
    )


def _describe(options: LLGuidanceOptions, target: TargetFacts) -> ConstraintCapabilities:
    return ConstraintCapabilities(structured_outputs=KINDS)


def _build(options: LLGuidanceOptions, context: ConstraintContext) -> Constraint:
    from paceline_llguidance.asked import WHITESPACE
    from paceline_llguidance.constraint import LLGuidanceConstraint
    from paceline_llguidance.vocabulary import Vocabulary

    return LLGuidanceConstraint(
        Vocabulary(context.tokenizer, context.target.vocab_size),
        whitespace=WHITESPACE[options.whitespace],
        max_cached_grammars=options.max_cached_grammars,
    )


@hookimpl
def paceline_constraints() -> tuple[ConstraintSpec, ...]:
    """Declare the constraint ``llguidance``."""
    return (
        ConstraintSpec(
            name="llguidance",
            summary="Structured outputs: JSON, regular expressions, choices, grammars",
            options=LLGuidanceOptions,
            requires_api=">=0.1,<0.2",
            describe=_describe,
            build=_build,
        ),
    )
