"""The corpus on disk: what the target said, and its features, in safetensors shards.

A shard ``shard-00000.safetensors`` holds whole samples, one after another, ``N`` rows in all:

- ``tokens`` int32 ``[N]``;
- ``features.<layer>`` float16 ``[N, hidden]``, of the row's own token, for every layer recorded;
- metadata ``samples``: JSON, one ``[prompt digest, prompt length in tokens, rows]`` per sample, in order.

It becomes visible by one rename, so that a shard which exists is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from paceline.api import PluginError

__all__ = ["Sample", "ShardWriter", "prompt_digest", "read_index", "read_shard", "shard_files"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered prompt.

    Attributes:
        prompt: Digest of the prompt's tokens.
        num_prompt_tokens: How many of ``tokens`` are the prompt.
        tokens: int32 ``[rows]``, prompt and answer; the answer's last tokens, which were never fed, are not there.
        features: ``layer -> float16 [rows, hidden]``, on the host.
    """

    prompt: str
    num_prompt_tokens: int
    tokens: np.ndarray
    features: Mapping[int | str, torch.Tensor]


def prompt_digest(tokens: Sequence[int] | np.ndarray) -> str:
    """16 hex digits that stand for a prompt, whatever its place in a file."""
    return hashlib.sha256(np.asarray(tokens, dtype="<i8").tobytes()).hexdigest()[:16]


def shard_files(folder: Path) -> list[Path]:
    """The shards of a folder, in the order in which they were written."""
    return sorted(folder.glob("shard-*.safetensors"))


class ShardWriter:
    """Collects samples and writes them when ``rows_per_shard`` rows are there.

    Args:
        folder: Where the shards go; those already there are kept.
        rows_per_shard: Rows from which a shard is written.
    """

    def __init__(self, folder: Path, rows_per_shard: int) -> None:
        self._folder = folder
        self._rows_per_shard = rows_per_shard
        self._samples: list[Sample] = []
        self._next = 1 + max((int(file.stem.split("-")[1]) for file in shard_files(folder)), default=-1)
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, sample: Sample) -> None:
        """Take one sample."""
        self._samples.append(sample)
        if sum(len(sample.tokens) for sample in self._samples) >= self._rows_per_shard:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if not self._samples:
            return
        file = self._folder / f"shard-{self._next:05d}.safetensors"
        scratch = file.with_suffix(".partial")
        layers = self._samples[0].features
        tensors = {f"features.{layer}": torch.cat([s.features[layer] for s in self._samples]) for layer in layers}
        tensors["tokens"] = torch.from_numpy(np.concatenate([s.tokens for s in self._samples]).astype(np.int32))
        index = [[s.prompt, s.num_prompt_tokens, len(s.tokens)] for s in self._samples]
        save_file(tensors, scratch, metadata={"samples": json.dumps(index)})
        os.replace(scratch, file)
        self._next += 1
        self._samples.clear()


def read_index(file: Path) -> list[tuple[str, int, int]]:
    """``(prompt digest, prompt length, rows)`` of a shard's samples.

    Raises:
        PluginError: if the file is no shard.
    """
    try:
        with safe_open(file, framework="pt") as shard:
            metadata = shard.metadata()
    except (OSError, SafetensorError) as error:
        raise _broken(file, error) from error
    if not metadata or "samples" not in metadata:
        raise _broken(file, 'it has no "samples"')
    return [(str(prompt), int(length), int(rows)) for prompt, length, rows in json.loads(metadata["samples"])]


def read_shard(file: Path, layers: Iterable[int | str]) -> list[Sample]:
    """The samples of a shard with the features of ``layers``."""
    index = read_index(file)
    sizes = [rows for _, _, rows in index]
    with safe_open(file, framework="pt") as shard:
        tokens = shard.get_tensor("tokens").split(sizes)
        features = {layer: shard.get_tensor(f"features.{layer}").split(sizes) for layer in layers}
    return [
        Sample(prompt, length, tokens[i].numpy(), {layer: parts[i] for layer, parts in features.items()})
        for i, (prompt, length, _) in enumerate(index)
    ]


def _broken(file: Path, why: object) -> PluginError:
    return PluginError(f'"{file}" is no shard of a training corpus: {why}; delete it, and it is made again')
