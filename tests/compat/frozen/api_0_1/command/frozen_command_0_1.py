"""``paceline sketch frozen_command_0_1``: what the target says, and some of its numbers, as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from paceline.api import Command, CommandContext, CommandSpec, Generation, PluginError, hookimpl


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    target: str = Field(description="Model to ask.")
    output: Path = Field(description="Where the answer goes.")
    tokens: list[int] = Field(default_factory=list, description="The prompt.")
    numerics: Literal["fast", "exact"] = "fast"
    temperature: float = 0.0


class Sketch(Command):
    def __init__(self, options: Options, context: CommandContext) -> None:
        self.options = options
        self.context = context
        self.finished: list[int] = []

    def run(self) -> None:
        if not self.options.tokens:
            raise PluginError("there is no prompt; give --tokens")
        with self.context.open(self.options.target, max_model_len=64, numerics=self.options.numerics) as session:
            (own,) = session.generate(
                [self.options.tokens],
                max_tokens=6,
                temperature=self.options.temperature,
                seed=1,
                ignore_eos=True,
                on_finished=lambda index, generation: self.finished.append(index),
            )
            tensors = session.open_checkpoint()
            found = {
                "vocabulary": session.facts.vocab_size,
                "has words": session.tokenizer is not None,
                "prompt": list(own.prompt_token_ids),
                "tokens": list(own.token_ids),
                "reason": own.finish_reason,
                "drafts": self.drafts(own),
                "finished": self.finished,
                "width": list(session.logits(tensors["model.norm.weight"][None]).shape),
                "embedded": list(session.embed(self.ids(tensors["model.norm.weight"])).shape),
            }
        self.options.output.write_text(json.dumps(found), encoding="utf-8")

    def drafts(self, own: Generation) -> list[int]:
        assert min(own.draft_time_s, own.verify_time_s) >= 0.0
        return [own.num_drafts, own.num_draft_tokens, own.num_accepted_tokens]

    def ids(self, like: object) -> object:
        import torch

        assert isinstance(like, torch.Tensor)
        return torch.from_numpy(np.arange(3))


def build(options: Options, context: CommandContext) -> Sketch:
    return Sketch(options, context)


@hookimpl
def paceline_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="sketch",
            summary="What the target says",
            options=Options,
            requires_api=">=0.1,<0.2",
            build=build,
        )
    ]
