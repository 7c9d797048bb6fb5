"""Samples as rows of a head: which rows there are, which of them teach, and in which order they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paceline_eagle.training.shards import Sample

__all__ = ["Batch", "collate", "epoch_order"]

FINAL = "final"


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of ``S`` samples one after another; row ``r`` of a sample stands in slot ``r + 1``.

    Attributes:
        tokens: int64 ``[T]``, the token in the row's slot.
        next_tokens: int64 ``[T]``, the token after it; -1 where it was not recorded.
        features: ``layer -> float32 [T, hidden]``, of the token before the slot.
        final: float32 ``[T, hidden]``, the target's final feature of the slot: it tells the next token.
        sequence: int64 ``[T]``, number of the row's sample.
        offset: int64 ``[T]``, number of the row in its sample.
        answer_depth: int64 ``[T]``, tokens of the answer before the slot's own; negative inside the prompt.
    """

    tokens: Any
    next_tokens: Any
    features: Mapping[int | str, Any]
    final: Any
    sequence: Any
    offset: Any
    answer_depth: Any

    def rows(self, step: int) -> Any:
        """int64: rows where draft number ``step`` may stand: a token of the answer lies ``step`` slots before."""
        return torch.nonzero((self.answer_depth >= step) & (self.next_tokens >= 0))[:, 0]


def collate(samples: Sequence[Sample], layers: Sequence[int | str], device: str) -> Batch:
    """Put samples of at least two rows into one batch on ``device``."""
    counts = [len(sample.tokens) - 1 for sample in samples]
    tokens = [torch.from_numpy(sample.tokens).long() for sample in samples]
    offsets = [torch.arange(count) for count in counts]
    unknown = torch.full((1,), -1)
    return Batch(
        tokens=torch.cat([part[1:] for part in tokens]).to(device),
        next_tokens=torch.cat([torch.cat([part[2:], unknown]) for part in tokens]).to(device),
        features={layer: _join([sample.features[layer][:-1] for sample in samples], device) for layer in layers},
        final=_join([sample.features[FINAL][1:] for sample in samples], device),
        sequence=torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(counts)).to(device),
        offset=torch.cat(offsets).to(device),
        answer_depth=torch.cat(
            [offset + 1 - sample.num_prompt_tokens for offset, sample in zip(offsets, samples, strict=True)]
        ).to(device),
    )


def _join(parts: Sequence[Any], device: str) -> Any:
    return torch.cat(list(parts)).to(device, torch.float32)


def epoch_order(sizes: Sequence[int], batch_rows: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches of sample numbers, about ``batch_rows`` rows each; a function of its arguments alone."""
    generator = torch.Generator().manual_seed(hash_seed(seed, epoch))
    return list(_packed(torch.randperm(len(sizes), generator=generator).tolist(), sizes, batch_rows))


def hash_seed(seed: int, epoch: int) -> int:
    """Another seed for each epoch."""
    return (seed * 1_000_003 + epoch) % 2**63


def _packed(order: Sequence[int], sizes: Sequence[int], batch_rows: int) -> Iterator[list[int]]:
    batch: list[int] = []
    num_rows = 0
    for sample in order:
        batch.append(sample)
        num_rows += sizes[sample]
        if num_rows >= batch_rows:
            yield batch
            batch, num_rows = [], 0
    if batch:
        yield batch
