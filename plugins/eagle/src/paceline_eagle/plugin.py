"""The entry point: options, declaration and hook. Imports no torch before a head is described."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from paceline.api import (
    CommandSpec,
    DraftShape,
    Proposer,
    ProposerCapabilities,
    ProposerContext,
    ProposerSpec,
    TargetFacts,
    chain_lookahead,
    hookimpl,
)
from paceline_eagle.training.specs import RECORDER, TRAIN

__all__ = ["EagleOptions", "paceline_commands", "paceline_proposers"]


class EagleOptions(BaseModel):
    """Which head drafts, and in which shape."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        min_length=1,
        description='Folder or hub id of an EAGLE head for the target, or "demo": the one that comes with the package.',
    )
    shape: Literal["chain", "tree"] = Field(default="chain", description="Draft one path, or a tree (EAGLE-2).")
    sampling: Literal["coupled", "greedy"] = Field(
        default="coupled", description="Draft with the verifier's noise, or the likeliest tokens."
    )
    top_k: int = Field(default=8, ge=1, le=64, description="Trees: children of a node, and nodes expanded per level.")
    depth: int = Field(default=5, ge=1, le=32, description="Trees: longest path, in tokens.")
    total_tokens: int = Field(default=32, ge=1, le=256, description="Trees: most nodes, the likeliest are kept.")


def _describe(options: EagleOptions, target: TargetFacts) -> ProposerCapabilities:
    from paceline_eagle.checkpoint import find_head
    from paceline_eagle.kv_group import head_kv_group
    from paceline_eagle.tree_shape import tree_shape

    files = find_head(options.model, target)
    is_tree = options.shape == "tree"
    shape = tree_shape(options.top_k, options.depth, files.config)
    return ProposerCapabilities(
        max_tokens=options.total_tokens if is_tree else target.max_model_len - 1,
        shape=DraftShape.TREE if is_tree else DraftShape.CHAIN,
        lookahead_slots=shape.num_slots if is_tree else chain_lookahead,
        hidden_layers=files.config.aux_layers,
        kv_groups=(head_kv_group(files, target),),
        recompute_tail=1,
    )


def _build(options: EagleOptions, context: ProposerContext) -> Proposer:
    from paceline_eagle.build import build_proposer

    return build_proposer(options, context)


@hookimpl
def paceline_proposers() -> tuple[ProposerSpec, ...]:
    """Declare the proposers ``eagle`` and ``eagle:recorder``."""
    return (
        ProposerSpec(
            name="eagle",
            summary="A chain or a tree drafted by an EAGLE head from the target's own features",
            options=EagleOptions,
            requires_api=">=0.1,<0.2",
            describe=_describe,
            build=_build,
        ),
        RECORDER,
    )


@hookimpl
def paceline_commands() -> tuple[CommandSpec, ...]:
    """Declare ``paceline train eagle``."""
    return (TRAIN,)
