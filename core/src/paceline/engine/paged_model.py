"""A proposer's model on the engine's blocks, and its view of them."""

from __future__ import annotations

import numpy as np
import torch

from paceline.api import KVView, PluginError
from paceline.engine.request import Request
from paceline.kv.manager import KVManager
from paceline.model.loading import LoadedModel
from paceline.model.runner import ModelRunner
from paceline.ops.batch import AttentionBatch

__all__ = ["GroupView", "RunnerModel"]


class GroupView:
    """``paceline.api.KVView`` of one KV group for the requests of a batch."""

    def __init__(self, kv: KVManager, group: str, requests: list[Request]) -> None:
        self._kv = kv
        self._group = group
        self._request_ids = [request.request_id for request in requests]
        self.table_rows = np.array([request.row for request in requests], dtype=np.int64)

    @property
    def first(self) -> np.ndarray:
        """int64 ``[requests]``: first valid position."""
        return self._kv.draft_range(self._group, self._request_ids)[0]

    @property
    def computed(self) -> np.ndarray:
        """int64 ``[requests]``: end of the valid range, exclusive."""
        return self._kv.draft_range(self._group, self._request_ids)[1]

    @property
    def capacity(self) -> np.ndarray:
        """int64 ``[requests]``: slots reserved."""
        return np.array([self._kv.capacity(request_id) for request_id in self._request_ids], dtype=np.int64)

    def report(self, computed: np.ndarray, first: np.ndarray | None = None) -> None:
        """Declare ``[first, computed)`` valid."""
        first = self.first if first is None else first
        self._kv.report(self._group, self._request_ids, first, computed)

    def reachable(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The valid ranges ``[first, computed)`` that rows at ``starts`` may attend to; an empty one begins there."""
        first, computed = self._kv.draft_range(self._group, self._request_ids)
        is_empty = first == computed
        return np.where(is_empty, starts, first), np.where(is_empty, starts, computed)

    def check_rows(self, first: np.ndarray, computed: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> None:
        """Refuse rows that leave a gap after the valid range or have no slots.

        Raises:
            PluginError: naming the request, its rows and the bounds.
        """
        stops, capacity = starts + counts, self.capacity
        bad = (counts > 0) & ((starts < 0) | (starts < first) | (starts > computed) | (stops > capacity))
        if bad.any():
            at = int(bad.argmax())
            raise PluginError(
                f'KV group "{self._group}": request "{self._request_ids[at]}" was to run at positions '
                f"[{starts[at]}, {stops[at]}); they must begin in its valid range [{first[at]}, {computed[at]}] "
                f"and end by {capacity[at]}, the slots reserved"
            )


class RunnerModel:
    """``paceline.api.PagedModel`` over a runner whose layers belong to one KV group."""

    def __init__(self, loaded: LoadedModel, runner: ModelRunner, kv: KVManager, max_positions: int) -> None:
        self._runner = runner
        self._kv = kv
        self._device = loaded.device
        self.max_positions = max_positions
        self.vocab_size = loaded.vocab_size
        self.tokenizer_fingerprint = loaded.tokenizer_fingerprint

    def forward(self, view: KVView, tokens: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        """Run the given tokens; see ``paceline.api.PagedModel``.

        Raises:
            PluginError: if they would attend to KV outside the valid range, or have no reserved slots.
        """
        assert isinstance(view, GroupView), "a view that this engine did not make"
        used = np.flatnonzero(counts)
        if not len(used):
            return torch.empty(0, self.vocab_size, device=self._device)
        first, computed = view.reachable(starts)
        view.check_rows(first, computed, starts, counts)
        counts, starts, table_rows = counts[used], starts[used], view.table_rows[used]
        ends = np.cumsum(counts)
        row_seq = np.repeat(np.arange(len(used)), counts)
        positions = starts[row_seq] + np.arange(len(row_seq)) - (ends - counts)[row_seq]
        slots = self._kv.slots(table_rows[row_seq], positions)
        slots[positions < computed[used][row_seq]] = -1
        batch = AttentionBatch.build(
            query_starts=np.concatenate([[0], ends]),
            slots=slots,
            block_tables=self._kv.block_tables[table_rows, : -(-int(positions.max() + 1) // self._kv.block_size)],
            block_size=self._kv.block_size,
            visible=positions + 1,
            first_keys=first[used],
            device=self._device,
        )
        return self._runner.forward(
            torch.from_numpy(np.array(tokens, dtype=np.int64)).to(self._device),  # views of requests are read-only
            torch.from_numpy(positions).to(self._device),
            batch,
            torch.from_numpy(ends - 1).to(self._device),
        ).logits
