"""``README.md`` of a head: where it comes from and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.api import TargetFacts
from paceline_eagle.training.acceptance import Acceptance
from paceline_eagle.training.dataset import Dataset, Vocabulary
from paceline_eagle.training.measure import Measurement
from paceline_eagle.training.options import TrainOptions
from paceline_eagle.training.shards import Sample

__all__ = ["Training", "write_card"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What training made.

    Attributes:
        data: What it learnt from.
        vocabulary: What it drafts.
        layers: Features that it reads.
        num_steps: Steps of the optimizer.
        seconds: Time they took.
        replayed: Acceptance on the recorded held-out answers.
    """

    data: Dataset
    vocabulary: Vocabulary
    layers: tuple[int, ...]
    num_steps: int
    seconds: float
    replayed: Acceptance


def write_card(options: TrainOptions, facts: TargetFacts, training: Training, measured: Measurement) -> None:
    """Write the card into the output folder."""
    corpus = {
        "prompts": "templates" if options.prompts is None else options.prompts.name,
        "answers learnt from": _size(training.data.training),
        "answers held out": _size(training.data.held_out),
    }
    size_bytes = (options.output / "model.safetensors").stat().st_size
    parts = [
        f"# EAGLE-3 head for {options.target}\n\nMade by `paceline train eagle`. It drafts for this target alone, and "
        "best on prompts like those that it was trained on. Whatever it drafts, the target chooses what is emitted.\n",
        _table("Target", {"model": options.target, "weights": f"`{facts.weights_fingerprint}`"}),
        _table("Corpus", corpus),
        _table("Recipe", _recipe(options, training)),
        _table("Figures", _figures(options, training, measured) | {"size": f"{size_bytes / 1e6:.1f} MB"}),
    ]
    (options.output / "README.md").write_text("\n".join(parts), encoding="utf-8")


def _recipe(options: TrainOptions, training: Training) -> dict[str, Any]:
    return {
        "layers whose inputs it reads": ", ".join(map(str, training.layers)),
        "tokens it drafts": f"{len(training.vocabulary.ids)}, {training.vocabulary.coverage:.2%} of held-out answers",
        "answers": f"temperature {options.temperature}, at most {options.answer_tokens} tokens",
        "learning rate": f"{options.learning_rate}, a cosine, AdamW",
        "batches": f"about {options.batch_tokens} tokens, {options.num_epochs} epochs, {training.num_steps} steps",
        "drafts in training": f"1, then {options.ttt_steps} in the last {options.ttt_share:.0%}",
        "weight of the feature loss": options.feature_weight,
        "seed": options.seed,
    }


def _figures(options: TrainOptions, training: Training, measured: Measurement) -> dict[str, str]:
    replayed = training.replayed
    return {
        f"acceptance length, chain of {options.num_drafts}, greedy": f"{measured.acceptance_length:.3f}",
        "the same, replayed on the recorded answers": f"{replayed.length:.3f}",
        "first draft accepted, replayed": f"{replayed.first_right / max(replayed.num_steps, 1):.1%}",
        "measured on": f"{measured.num_prompts} held-out prompts, {measured.num_tokens} tokens, "
        f"{measured.num_steps} verify steps with drafts",
        "drafted and accepted": f"{measured.num_draft_tokens} and {measured.num_accepted_tokens} tokens",
        "time of training": f"{training.seconds / 60:.1f} minutes",
    }


def _size(samples: list[Sample]) -> str:
    rows = sum(len(sample.tokens) for sample in samples)
    answered = rows - sum(sample.num_prompt_tokens for sample in samples)
    return f"{len(samples)} with {answered} tokens, and {rows - answered} of their prompts"


def _table(title: str, rows: Mapping[str, Any]) -> str:
    lines = [f"## {title}", "", "| what | value |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows.items()), ""])
