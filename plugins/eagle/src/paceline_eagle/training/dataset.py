"""The corpus in memory: which samples teach, and which are held out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.api import PluginError
from paceline_eagle.training.batches import FINAL
from paceline_eagle.training.shards import Sample, read_shard, shard_files

__all__ = ["Dataset", "Vocabulary", "choose_vocabulary", "held_out_digests", "load_dataset"]

_LEAST_ROWS = 3  # a slot with a feature before it and a known token after it


@dataclass(frozen=True, slots=True)
class Dataset:
    """Samples in the order of their digests, whatever order they were recorded in.

    Attributes:
        training: Those that teach.
        held_out: Those that measure.
    """

    training: list[Sample]
    held_out: list[Sample]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids that a head drafts.

    Attributes:
        ids: int64 ``[size]``, ascending.
        coverage: Share of the held-out answers' tokens that are among them.
    """

    ids: np.ndarray
    coverage: float


def held_out_digests(digests: Collection[str], count: int) -> frozenset[str]:
    """The prompts to hold out: a choice that depends on the prompts alone, not on their order or repeats."""
    return frozenset(sorted(set(digests))[:count])


def load_dataset(folder: Path, layers: Sequence[int | str], prompts: Collection[str], num_held_out: int) -> Dataset:
    """Read the samples of ``prompts`` (digests) with the features of ``layers`` and ``"final"``.

    Raises:
        PluginError: if nothing is left to train on.
    """
    held_out = held_out_digests(prompts, num_held_out)
    wanted = set(prompts)
    by_prompt = {
        sample.prompt: sample
        for file in shard_files(folder)
        for sample in read_shard(file, [*layers, FINAL])
        if sample.prompt in wanted and len(sample.tokens) >= max(_LEAST_ROWS, sample.num_prompt_tokens + 2)
    }
    samples = [by_prompt[prompt] for prompt in sorted(by_prompt)]
    training = [sample for sample in samples if sample.prompt not in held_out]
    if not training:
        raise PluginError(
            f'"{folder}" holds {len(samples)} usable answers, and {num_held_out} prompts are held out, so none is left '
            "to train on; give more prompts, or hold out fewer"
        )
    return Dataset(training, [sample for sample in samples if sample.prompt in held_out])


def choose_vocabulary(data: Dataset, size: int) -> Vocabulary:
    """The tokens most frequent in the training answers, at most ``size``; then those most frequent in their prompts.

    Prompts come after, and not at all when answers fill the vocabulary: what they name, answers may repeat. Of two that
    are as frequent, the lower id goes first.
    """
    answers = _joined([sample.tokens[sample.num_prompt_tokens :] for sample in data.training])
    prompts = _joined([sample.tokens[: sample.num_prompt_tokens] for sample in data.training])
    ids = np.unique(np.concatenate([answers, prompts]))
    in_answers, in_prompts = (np.bincount(part, minlength=ids[-1] + 1)[ids] for part in (answers, prompts))
    chosen = np.sort(ids[np.lexsort((ids, -in_prompts, -in_answers))[:size]]).astype(np.int64)
    held_out = _joined([sample.tokens[sample.num_prompt_tokens :] for sample in data.held_out])
    return Vocabulary(chosen, float(np.isin(held_out, chosen).mean()) if len(held_out) else 1.0)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])
