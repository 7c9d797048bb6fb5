"""``eagle:recorder``: a proposer that drafts nothing and writes down what came true."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from paceline.api import CommittedBatch, Drafts, PluginError, ProposeBatch, Proposer, ReleaseReason
from paceline_eagle.training.shards import Sample, ShardWriter, prompt_digest

__all__ = ["Recorder"]

_ROWS_PER_SHARD = 8192
_LARGEST = float(torch.finfo(torch.float16).max)


class _Recording:
    """What is known of a live request."""

    def __init__(self, prompt: np.ndarray) -> None:
        self.prompt = prompt_digest(prompt)
        self.num_prompt_tokens = len(prompt)
        self.num_rows = 0
        self.tokens: list[np.ndarray] = []
        self.features: list[dict[int | str, torch.Tensor]] = []

    def sample(self) -> Sample:
        layers = self.features[0]
        features = {layer: torch.cat([part[layer] for part in self.features]) for layer in layers}
        return Sample(self.prompt, self.num_prompt_tokens, np.concatenate(self.tokens), features)


class Recorder(Proposer):
    """Writes the tokens and features of every finished request into shards.

    The rows of the step that ends a request are not told, so the token before the last is the last one written.
    A preempted request is recorded anew when it is computed anew.

    Args:
        folder: Where the shards go.
    """

    def __init__(self, folder: Path) -> None:
        self._writer = ShardWriter(folder, _ROWS_PER_SHARD)
        self._recordings: dict[str, _Recording] = {}

    def propose(self, batch: ProposeBatch) -> Drafts:
        """Draft nothing."""
        return Drafts.empty(len(batch.requests))

    def observe(self, committed: CommittedBatch) -> None:
        """Keep the rows that became true.

        Raises:
            PluginError: if rows are missing, since they came from the prefix cache.
        """
        counts = np.bincount(committed.row_request, minlength=len(committed.requests)).tolist()
        starts = np.cumsum([0, *counts])
        features = {layer: _stored(layer, rows) for layer, rows in committed.features.items()}
        for request, start, count in zip(committed.requests, starts.tolist(), counts, strict=False):
            if not count:
                continue
            recording = self._recordings.get(request.request_id)
            if recording is None:
                recording = _Recording(request.tokens[: request.num_prompt_tokens])
                self._recordings[request.request_id] = recording
            _check_position(request.request_id, recording.num_rows, int(committed.positions[start]))
            rows = slice(start, start + count)
            recording.num_rows += count
            recording.tokens.append(committed.tokens[rows].astype(np.int32))
            recording.features.append({layer: values[rows].clone() for layer, values in features.items()})

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        """Write those that finished, forget the others."""
        for request_id in request_ids:
            recording = self._recordings.pop(request_id, None)
            if recording is not None and reason is ReleaseReason.FINISHED:
                self._writer.add(recording.sample())

    def close(self) -> None:
        """Write what finished since the last shard."""
        self._writer.flush()


def _stored(layer: int | str, rows: torch.Tensor) -> torch.Tensor:
    largest = float(rows.abs().max()) if len(rows) else 0.0
    if not largest <= _LARGEST:
        raise PluginError(
            f"the features of layer {layer} reach {largest:g}, and float16, in which they are recorded, {_LARGEST:g}; "
            "choose other layers"
        )
    return rows.to("cpu", torch.float16)


def _check_position(request_id: str, expected: int, position: int) -> None:
    if position != expected:
        raise PluginError(
            f"request {request_id}: the next row to record is that of position {expected}, and position {position} "
            "came: what a prefix hit skips has no features; start the engine with enable_prefix_caching=False"
        )
