"""A proposer's model on the engine's blocks, and its view of them."""

from __future__ import annotations

import numpy as np
import torch

from paceline.api import KVView, PluginError
from paceline.engine.request import Request
from paceline.kv.manager import KVManager
from paceline.kv.tables import BlockTables
from paceline.model.loading import LoadedModel
from paceline.model.runner import ModelRunner
from paceline.ops.batch import AttentionBatch

__all__ = ["GroupView", "RunnerModel"]


class GroupView:
    """``paceline.api.KVView`` of one KV group for the requests of a batch."""

    def __init__(self, kv: KVManager, group: str, requests: list[Request]) -> None:
        self._kv = kv
        self.group = group
        self._request_ids = [request.request_id for request in requests]
        self.table_rows = np.array([request.row for request in requests], dtype=np.int64)
        self._written: np.ndarray | None = None  # int64 [requests], end of what this call wrote behind the valid range

    @property
    def first(self) -> np.ndarray:
        """int64 ``[requests]``: first valid position."""
        return self._kv.draft_range(self.group, self._request_ids)[0]

    @property
    def computed(self) -> np.ndarray:
        """int64 ``[requests]``: end of the valid range, exclusive."""
        return self._kv.draft_range(self.group, self._request_ids)[1]

    @property
    def capacity(self) -> np.ndarray:
        """int64 ``[requests]``: slots reserved."""
        return self._kv.draft_capacity(self.group, self._request_ids)

    @property
    def tables(self) -> BlockTables:
        """Where the group's slots are."""
        return self._kv.components.tables(self.group)

    def reserve(self, num_slots: np.ndarray) -> None:
        """Ask for slots of a private group.

        Raises:
            PluginError: if the group is not private.
        """
        if self.group not in self._kv.components.private:
            raise PluginError(
                f'KV group "{self.group}" lies in the slots of the target\'s tokens, which are reserved for it; '
                "describe it with private=True to reserve slots of its own"
            )
        self._kv.reserve_private(self.group, self._request_ids, num_slots)

    def report(self, computed: np.ndarray, first: np.ndarray | None = None) -> None:
        """Declare ``[first, computed)`` valid."""
        first = self.first if first is None else first
        self._kv.report(self.group, self._request_ids, first, computed)

    def reachable(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The valid ranges ``[first, computed)`` that rows at ``starts`` may attend to; an empty one begins there."""
        first, computed = self._kv.draft_range(self.group, self._request_ids)
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
                f'KV group "{self.group}": request "{self._request_ids[at]}" was to run at positions '
                f"[{starts[at]}, {stops[at]}); they must begin in its valid range [{first[at]}, {computed[at]}] "
                f"and end by {capacity[at]}, the slots reserved"
            )

    def claim(
        self, row_request: np.ndarray, slots: np.ndarray, visible: np.ndarray, paths: np.ndarray | None, first: int
    ) -> None:
        """Take these slots for rows that are about to be written, and refuse rows that read what nobody wrote.

        Raises:
            PluginError: naming the request, the slot and the bounds.
        """
        lowest = np.maximum(self.first, first)
        if self._written is None:
            self._written = np.maximum(self.computed, lowest)
        ends = np.maximum(self._written, lowest)
        tops = ends.copy()
        np.maximum.at(tops, row_request, slots + 1)
        taken = np.unique(np.stack([row_request, slots])[:, slots >= ends[row_request]], axis=1)
        is_full = np.bincount(taken[0], minlength=len(ends)) == tops - ends
        reads = visible - 1 if paths is None else np.maximum(visible - 1, paths.max(axis=1, initial=-1))
        bad = ~is_full[row_request] | (slots < lowest[row_request]) | (reads >= tops[row_request])
        bad |= tops[row_request] > self.capacity[row_request]
        if bad.any():
            at = int(bad.argmax())
            index = int(row_request[at])
            raise PluginError(
                f'KV group "{self.group}": request "{self._request_ids[index]}" was to write slot {slots[at]} and '
                f"read up to slot {reads[at]}; entries are there in [{lowest[index]}, {ends[index]}), new ones must "
                f"follow without a gap and end by {self.capacity[index]}, the slots reserved"
            )
        self._written = tops


class RunnerModel:
    """``paceline.api.PagedModel`` over a runner whose layers belong to one KV group."""

    def __init__(self, loaded: LoadedModel, runner: ModelRunner, kv: KVManager, max_positions: int) -> None:
        self._runner = runner
        self._kv = kv
        self._device = loaded.device
        self.max_positions = max_positions
        self.vocab_size = loaded.vocab_size
        self.tokenizer = loaded.tokenizer
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
        slots = view.tables.slots(table_rows[row_seq], positions)
        slots[positions < computed[used][row_seq]] = -1
        batch = AttentionBatch.build(
            query_starts=np.concatenate([[0], ends]),
            slots=slots,
            block_tables=view.tables.array[table_rows, : -(-int(positions.max() + 1) // self._kv.block_size)],
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
