"""The training loop: AdamW on a cosine, with a state on disk from which it goes on bit for bit."""

from __future__ import annotations

import math
import os
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.api import PluginError
from paceline_eagle.head import Head
from paceline_eagle.training.acceptance import Acceptance, replayed
from paceline_eagle.training.batches import Batch, collate, epoch_order
from paceline_eagle.training.dataset import Dataset
from paceline_eagle.training.interrupt import interrupts_between_steps
from paceline_eagle.training.objective import STEP_WEIGHT, StepResult, Teacher, losses
from paceline_eagle.training.progress import stage_progress

__all__ = ["Recipe", "Trainer"]

_WARM_UP_SHARE = 0.03
_BETAS = (0.9, 0.95)
_LARGEST_GRADIENT = 1.0
_SAVE_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a run of training depends on, besides the corpus and the initial head.

    Attributes:
        seed: Order of the samples.
        num_epochs: Passes over the corpus.
        learning_rate: At the end of the warm-up.
        batch_rows: Tokens in a batch.
        ttt_steps: Drafts that follow each other in the last part of training; 1 before.
        ttt_share: How large that part is, 0 to 1.
        feature_weight: Weight of the feature loss.
        num_drafts: Length of the chains whose acceptance is measured.
        corpus: Digest of the samples and the drafted ids.
    """

    seed: int
    num_epochs: int
    learning_rate: float
    batch_rows: int
    ttt_steps: int
    ttt_share: float
    feature_weight: float
    num_drafts: int
    corpus: str


class Trainer:
    """Trains a head in place.

    Args:
        head: The initial head, on the device to train on.
        teacher: The target.
        data: The samples.
        recipe: How.
        state_file: Where the state is kept between runs.
        device: Where batches go.
    """

    def __init__(
        self, head: Head, teacher: Teacher, data: Dataset, recipe: Recipe, state_file: Path, device: str
    ) -> None:
        self._head, self._teacher, self._data, self._recipe = head, teacher, data, recipe
        self._state_file, self._device = state_file, device
        self._layers = head.config.aux_layers
        self._optimizer = torch.optim.AdamW(head.parameters(), lr=recipe.learning_rate, betas=_BETAS, weight_decay=0.0)
        sizes = [len(sample.tokens) for sample in data.training]
        epochs = range(recipe.num_epochs)
        self._batches = [
            batch for epoch in epochs for batch in epoch_order(sizes, recipe.batch_rows, recipe.seed, epoch)
        ]
        self._held_out = self._held_out_batches()
        self.num_steps_done = 0
        self.seconds = 0.0
        self._load()

    @property
    def num_steps(self) -> int:
        """Steps in all."""
        return len(self._batches)

    def run(self, on_step: Callable[[int], None] = lambda step: None) -> None:
        """Train what is left to train.

        Args:
            on_step: Called with the number of steps done after each of them.

        Raises:
            KeyboardInterrupt: after the step in which it came, with the state saved.
        """
        saved_s = started_s = time.perf_counter()
        before_s = self.seconds
        with (
            stage_progress("training", self.num_steps, self.num_steps_done) as progress,
            interrupts_between_steps() as interrupted,
        ):
            while self.num_steps_done < self.num_steps and not interrupted():
                results = self._step()
                self.num_steps_done += 1
                now_s = time.perf_counter()
                self.seconds = before_s + now_s - started_s
                figures = _figures(results)
                if self._is_mile_stone():
                    length = self.held_out_acceptance().length
                    progress.say(f"step {self.num_steps_done}: {figures} · held-out acceptance length {length:.3f}")
                if now_s - saved_s > _SAVE_EVERY_S:
                    self._save()
                    saved_s = now_s
                progress.advance(figures)
                on_step(self.num_steps_done)
            self._save()

    def held_out_acceptance(self) -> Acceptance:
        """Acceptance on the held-out answers, replayed."""
        return replayed(self._head, self._teacher, self._held_out, self._recipe.num_drafts)

    def _held_out_batches(self) -> list[Batch]:
        sizes = [len(sample.tokens) for sample in self._data.held_out]
        order = epoch_order(sizes, self._recipe.batch_rows, self._recipe.seed, 0)
        return [collate([self._data.held_out[i] for i in batch], self._layers, self._device) for batch in order]

    def _is_mile_stone(self) -> bool:
        """8 times in a run."""
        return bool(self._held_out) and self.num_steps_done % max(self.num_steps // 8, 1) == 0

    def _step(self) -> list[StepResult]:
        recipe = self._recipe
        samples = [self._data.training[i] for i in self._batches[self.num_steps_done]]
        is_unrolled = self.num_steps_done >= (1 - recipe.ttt_share) * self.num_steps
        num_unrolled = recipe.ttt_steps if is_unrolled else 1
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _schedule(self.num_steps_done, self.num_steps)
        batch = collate(samples, self._layers, self._device)
        results = losses(self._head, self._teacher, batch, num_unrolled, recipe.feature_weight)
        weights = [STEP_WEIGHT**step for step in range(len(results))]
        loss = sum(weight * result.loss for weight, result in zip(weights, results, strict=True)) / sum(weights)
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._head.parameters(), _LARGEST_GRADIENT)
        self._optimizer.step()
        return results

    def _save(self) -> None:
        scratch = self._state_file.with_suffix(".partial")
        state = {
            "recipe": asdict(self._recipe),
            "num_steps_done": self.num_steps_done,
            "seconds": self.seconds,
            "head": self._head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        torch.save(state, scratch)
        os.replace(scratch, self._state_file)

    def _load(self) -> None:
        if not self._state_file.exists():
            return
        state = _read_state(self._state_file, self._device)
        _check_recipe(self._state_file, state["recipe"], asdict(self._recipe))
        self.num_steps_done, self.seconds = state["num_steps_done"], state["seconds"]
        self._head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])


def _schedule(step: int, num_steps: int) -> float:
    """Factor on the learning rate: a linear warm-up, then a cosine to nothing."""
    warm_up = max(1, round(_WARM_UP_SHARE * num_steps))
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(num_steps - warm_up, 1)))


def _figures(results: list[StepResult]) -> str:
    """Loss of the first draft, and the share of the drafts of each step that are right."""
    shares = "/".join(f"{result.num_right / max(result.num_rows, 1):.0%}" for result in results)
    return f"loss {results[0].loss.item():.3f} · right {shares}"


def _read_state(file: Path, device: str) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise PluginError(f'"{file}" is no state of a training: {error}; delete it to begin anew') from error
    return state


def _check_recipe(file: Path, found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    for name, value in asked.items():
        if found.get(name) != value:
            raise PluginError(
                f'"{file}" is the state of a run with {name} = {found.get(name)!r}, and {value!r} is asked for; '
                "ask for the same, choose another output, or delete the file to begin anew"
            )
