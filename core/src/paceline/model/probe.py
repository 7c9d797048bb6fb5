"""A runner on a small paged cache of its own, for checking a model before it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paceline.model.architecture import target_kv_group
from paceline.model.loading import LoadedModel
from paceline.model.runner import FINAL, ForwardOutput, ModelRunner
from paceline.ops.batch import AttentionBatch
from paceline.ops.select import Ops

__all__ = ["Part", "Probe"]

_BLOCK_SIZE = 16


@dataclass(slots=True)
class Part:
    """Consecutive rows of one sequence.

    Attributes:
        seq: 0 or 1.
        start: Entry of the sequence's block table that the first row writes.
        tokens: int64 ``[rows]``.
        first_position: Position of the first row for the position encoding; ``None`` = ``start``. Another value puts a
            short sequence at the end of a long context without computing one.
    """

    seq: int
    start: int
    tokens: np.ndarray
    first_position: int | None = None

    @property
    def entries(self) -> np.ndarray:
        """int64 ``[rows]``: table entries of the rows."""
        return self.start + np.arange(len(self.tokens))

    @property
    def positions(self) -> np.ndarray:
        """int64 ``[rows]``: positions of the rows."""
        return self.entries if self.first_position is None else self.entries - self.start + self.first_position


class Probe:
    """Two sequences whose blocks are interleaved and descending, so that order in memory is not order in time."""

    def __init__(self, loaded: LoadedModel, ops: Ops, num_tokens: int) -> None:
        blocks_per_seq = -(-num_tokens // _BLOCK_SIZE)
        self._tables = np.arange(2 * blocks_per_seq)[::-1].reshape(blocks_per_seq, 2).T
        self._device = loaded.device
        group = target_kv_group(loaded.config, dtype=loaded.dtype, fingerprint=loaded.weights_fingerprint)
        shape = (2 * blocks_per_seq, _BLOCK_SIZE, group.num_kv_heads)
        like = {"dtype": loaded.dtype, "device": loaded.device}
        layers = [
            (torch.zeros(*shape, group.key_size, **like), torch.zeros(*shape, group.value_size, **like))
            for _ in range(group.num_layers)
        ]
        self.runner = ModelRunner(loaded, layers, ops, taps=(0, FINAL))

    def run(self, parts: Sequence[Part]) -> ForwardOutput:
        """One pass over the parts, in their order; logits of every row."""
        tables = self._tables[[part.seq for part in parts]]
        counts = [len(part.tokens) for part in parts]
        entries = np.concatenate([part.entries for part in parts])
        row_tables = np.repeat(tables, counts, axis=0)
        blocks = row_tables[np.arange(len(entries)), entries // _BLOCK_SIZE]
        batch = AttentionBatch.build(
            query_starts=np.cumsum([0, *counts]),
            visible=entries + 1,
            slots=blocks * _BLOCK_SIZE + entries % _BLOCK_SIZE,
            block_tables=tables,
            block_size=_BLOCK_SIZE,
            device=self._device,
        )
        tokens = np.concatenate([part.tokens for part in parts])
        positions = np.concatenate([part.positions for part in parts])
        rows = np.arange(len(tokens))
        return self.runner.forward(self._upload(tokens), self._upload(positions), batch, self._upload(rows))

    def _upload(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
