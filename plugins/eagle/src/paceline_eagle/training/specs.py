"""Declarations of ``eagle:recorder`` and of ``paceline train eagle``. Imports no torch."""

from __future__ import annotations

from paceline.api import (
    Command,
    CommandContext,
    CommandSpec,
    Proposer,
    ProposerCapabilities,
    ProposerContext,
    ProposerSpec,
    TargetFacts,
)
from paceline_eagle.training.options import RecorderOptions, TrainOptions

__all__ = ["RECORDER", "TRAIN"]


def _describe_recorder(options: RecorderOptions, target: TargetFacts) -> ProposerCapabilities:
    return ProposerCapabilities(max_tokens=0, hidden_layers=options.layers)


def _build_recorder(options: RecorderOptions, context: ProposerContext) -> Proposer:
    from paceline_eagle.training.recorder import Recorder

    return Recorder(options.folder)


def _build_train(options: TrainOptions, context: CommandContext) -> Command:
    from paceline_eagle.training.command import TrainCommand

    return TrainCommand(options, context)


RECORDER = ProposerSpec(
    name="recorder",
    summary="Drafts nothing; writes tokens and features down, for training a head",
    options=RecorderOptions,
    requires_api=">=0.1,<0.2",
    describe=_describe_recorder,
    build=_build_recorder,
)
TRAIN = CommandSpec(
    name="train",
    summary="Train an EAGLE-3 head for a target, and measure it",
    options=TrainOptions,
    requires_api=">=0.1,<0.2",
    build=_build_train,
)
