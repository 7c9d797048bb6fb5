"""Options of ``eagle:recorder`` and of ``paceline train eagle``. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["RecorderOptions", "TrainOptions"]


class RecorderOptions(BaseModel):
    """What is recorded, and where it goes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Path = Field(description="Folder of the shards.")
    layers: tuple[int | Literal["final"], ...] = Field(
        min_length=1, description='Features: i = the residual stream entering layer i, "final" = after the last norm.'
    )


class TrainOptions(BaseModel):
    """A run of training, from prompts to a head that was measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str = Field(min_length=1, description="The model to draft for: folder, hub id, GGUF file or demo.")
    output: Path = Field(description="Folder of the head; what a run needs to go on is kept in its folder work.")
    corpus: Path | None = Field(default=None, description="Folder of the answers, if not in the output's work folder.")
    prompts: Path | None = Field(
        default=None, description="JSON lines with turns or prompt, or lines of text; templates if not given."
    )
    num_prompts: int = Field(default=1000, ge=2, description="Most prompts that are answered.")
    num_held_out: int = Field(default=50, ge=1, description="Prompts of them that measure and never teach.")
    answer_tokens: int = Field(default=128, ge=4, description="Most tokens of an answer.")
    temperature: float = Field(default=0.0, ge=0.0, allow_inf_nan=False, description="Of the answers; 0 is greedy.")
    layers: tuple[int, ...] = Field(
        default=(), description="Layers whose inputs the head reads; 2, half and all but 3 of them if not given."
    )
    draft_vocab_size: int = Field(default=4096, ge=1, description="Most token ids that the head drafts.")
    num_epochs: int = Field(default=3, ge=1, description="Passes over the answers.")
    learning_rate: float = Field(default=1e-3, gt=0.0, allow_inf_nan=False, description="Largest learning rate.")
    batch_tokens: int = Field(default=2048, ge=1, description="Tokens in a batch.")
    ttt_steps: int = Field(default=3, ge=1, le=16, description="Drafts that follow each other in training.")
    ttt_share: float = Field(
        default=0.6, ge=0.0, le=1.0, description="Share of the training, its end, with ttt_steps; one draft before."
    )
    feature_weight: float = Field(
        default=0.0, ge=0.0, allow_inf_nan=False, description="Weight of the distance to the target's next feature."
    )
    num_drafts: int = Field(default=3, ge=1, description="Length of the chains that are measured.")
    format: Literal["eagle", "speculators"] = Field(default="eagle", description="Published format of the head.")
    seed: int = Field(default=0, ge=0, lt=2**31, description="Of templates, answers and the order of the samples.")
    device: str = Field(default="auto", description="Where the target runs and the head is trained.")
    numerics: Literal["fast", "exact"] = Field(default="fast", description="Of the engine that answers.")
    max_num_seqs: int = Field(default=16, ge=1, description="Prompts answered at once.")
    max_model_len: int | None = Field(
        default=None, ge=1, description="Most tokens of a prompt and its answer; the model's own limit if not given."
    )
