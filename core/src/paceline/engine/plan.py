"""The plan of a step: which rows the target runs, and which of them choose a token."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paceline.engine.request import Request
from paceline.engine.tree_layout import node_depths, node_paths

__all__ = ["DraftRows", "Plan", "Selected", "build_plan", "offsets"]


@dataclass(slots=True)
class Selected:
    """What the scheduler granted; blocks for all of it are reserved.

    Attributes:
        decoding: Requests with one uncomputed token: they emit in this step, and may draft.
        budgets: int64 ``[decoding]``, draft nodes granted to each.
        chunks: Requests that compute several known tokens.
    """

    decoding: list[Request]
    budgets: np.ndarray
    chunks: list[Request]


@dataclass(slots=True)
class DraftRows:
    """Checked drafts on the host.

    Attributes:
        tokens: int64 ``[decoding, width]``, padded with -1.
        lengths: int64 ``[decoding]``.
        parents: int64 ``[decoding, width]`` for trees, else ``None``.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    parents: np.ndarray | None = None

    @classmethod
    def none(cls, num_requests: int) -> DraftRows:
        """No drafts."""
        return cls(np.empty((num_requests, 0), dtype=np.int64), np.zeros(num_requests, dtype=np.int64))

    def trimmed(self, lengths: np.ndarray) -> DraftRows:
        """Keep the first ``lengths`` nodes of each row; parents precede children, so trees stay whole."""
        width = int(lengths.max(initial=0))
        kept = np.arange(width) < lengths[:, None]
        tokens = np.where(kept, self.tokens[:, :width], -1)
        parents = None if self.parents is None else np.where(kept, self.parents[:, :width], -1)
        return DraftRows(tokens, lengths, parents)

    def kept(self, keep: np.ndarray) -> DraftRows:
        """Only the nodes to keep (bool ``[decoding, width]``) whose ancestors are all kept, moved together."""
        keep = keep & (np.arange(keep.shape[1]) < self.lengths[:, None])
        if self.parents is None:
            return self.trimmed(np.where(keep.all(axis=1), keep.shape[1], keep.argmin(axis=1)))
        for node in range(keep.shape[1]):
            parent = self.parents[:, node]
            keep[:, node] &= (parent < 0) | keep[np.arange(len(keep)), parent]
        order = np.argsort(~keep, axis=1, kind="stable")
        moved = np.argsort(order, axis=1)
        parents = np.where(self.parents < 0, -1, np.take_along_axis(moved, np.maximum(self.parents, 0), axis=1))
        tokens, parents = (np.take_along_axis(values, order, axis=1) for values in (self.tokens, parents))
        return DraftRows(tokens, self.lengths, parents).trimmed(keep.sum(axis=1))


@dataclass(slots=True)
class Plan:
    """One target pass over decodes, drafts and chunks; decodes come first. Host arrays.

    Attributes:
        requests: The requests, ``S`` of them; the first ``num_decoding`` are decoding.
        table_rows: int64 ``[S]``, their rows of the block table.
        starts: int64 ``[S]``, position of each one's first row.
        counts: int64 ``[S]``, its rows.
        drafts: Drafts of the decoding requests.
        tokens: int64 ``[T]``.
        row_seq: int64 ``[T]``, index into ``requests``.
        positions: int64 ``[T]``.
        slot_positions: int64 ``[T]``, where in its sequence a row's KV goes (differs from the position in trees).
        visible: int64 ``[T]``, leading slots that the row attends to.
        paths: int64 ``[T, depth]`` of slot positions attended to after those, padded with -1; ``None`` without trees.
        emitters: int64 ``[E]``, indices into ``requests`` of those that emit.
        choice_rows: int64 ``[R]``, rows that choose a token; grouped by emitter, its last known token first.
        choice_counts: int64 ``[E]``, rows of each emitter.
        prompt_rows: int64 ``[Q]``, rows whose scores of the next prompt token are wanted; in the order of requests.
        slots: int64 ``[T]``, where in the cache their KV goes; filled in by the scheduler.
    """

    requests: list[Request]
    num_decoding: int
    table_rows: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    drafts: DraftRows
    tokens: np.ndarray
    row_seq: np.ndarray
    positions: np.ndarray
    slot_positions: np.ndarray
    visible: np.ndarray
    paths: np.ndarray | None
    emitters: np.ndarray
    choice_rows: np.ndarray
    choice_counts: np.ndarray
    prompt_rows: np.ndarray
    slots: np.ndarray = field(init=False)

    @property
    def num_rows(self) -> int:
        """Rows of the target pass."""
        return len(self.tokens)

    @property
    def query_starts(self) -> np.ndarray:
        """int64 ``[S + 1]``: first row of each request, and the number of rows."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @property
    def emitting(self) -> list[Request]:
        """The requests that emit."""
        return [self.requests[index] for index in self.emitters]


def offsets(counts: np.ndarray) -> np.ndarray:
    """0, 1, ... within each group of ``counts`` rows."""
    ends = np.cumsum(counts)
    return np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)


def _row_tokens(requests: list[Request], starts: np.ndarray, counts: np.ndarray, drafts: DraftRows) -> np.ndarray:
    num_drafts = np.zeros(len(requests), dtype=np.int64)
    num_drafts[: len(drafts.lengths)] = drafts.lengths
    parts: list[np.ndarray] = []
    for index, request in enumerate(requests):
        known = int(counts[index] - num_drafts[index])
        parts.append(request.tokens[starts[index] : starts[index] + known])
        if num_drafts[index]:
            parts.append(drafts.tokens[index, : num_drafts[index]])
    return np.concatenate(parts)


def _prompt_rows(requests: list[Request], starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Rows of prompt tokens but the last, of requests that still miss the scores of the tokens after them."""
    parts = [np.zeros(0, dtype=np.int64)]
    first_rows = np.cumsum(counts) - counts
    for index, request in enumerate(requests):
        if request.misses_prompt_logprobs:
            start, stop = int(starts[index]), min(int(starts[index] + counts[index]), request.num_prompt_tokens - 1)
            parts.append(first_rows[index] + np.arange(request.num_prompt_logprobs - 1, stop) - start)
    return np.concatenate(parts)


def build_plan(decoding: list[Request], drafts: DraftRows, chunks: list[Request], chunk_sizes: list[int]) -> Plan:
    """Lay out the rows of a step. ``O(requests)`` Python work; all per-row work is on arrays."""
    requests = decoding + chunks
    starts = np.array([request.num_computed for request in requests], dtype=np.int64)
    counts = np.concatenate([1 + drafts.lengths, np.array(chunk_sizes, dtype=np.int64)])
    within = offsets(counts)
    row_seq = np.repeat(np.arange(len(requests)), counts)
    slot_positions = starts[row_seq] + within
    known = np.array([request.num_tokens for request in requests], dtype=np.int64)
    caught_up = starts + counts >= known
    caught_up[: len(decoding)] = True
    emitters = np.flatnonzero(caught_up)
    num_drafts = np.zeros(len(requests), dtype=np.int64)
    num_drafts[: len(decoding)] = drafts.lengths
    choice_counts = 1 + num_drafts[emitters]
    last_known_rows = np.cumsum(counts) - 1 - num_drafts
    plan = Plan(
        requests=requests,
        num_decoding=len(decoding),
        table_rows=np.array([request.row for request in requests], dtype=np.int64),
        starts=starts,
        counts=counts,
        drafts=drafts,
        tokens=_row_tokens(requests, starts, counts, drafts),
        row_seq=row_seq,
        positions=slot_positions,
        slot_positions=slot_positions,
        visible=slot_positions + 1,
        paths=None,
        emitters=emitters,
        choice_rows=np.repeat(last_known_rows[emitters], choice_counts) + offsets(choice_counts),
        choice_counts=choice_counts,
        prompt_rows=_prompt_rows(requests, starts, counts),
    )
    if drafts.parents is not None and drafts.lengths.any():
        _lay_out_trees(plan, drafts.parents)
    return plan


def _lay_out_trees(plan: Plan, parents: np.ndarray) -> None:
    """Rows of tree nodes see the committed tokens and their own path; positions follow the depth."""
    lengths = plan.drafts.lengths
    depths = node_depths(parents, lengths)
    paths = node_paths(parents, depths)
    seq, node = np.nonzero(np.arange(parents.shape[1]) < lengths[:, None])
    rows = plan.query_starts[seq] + 1 + node
    roots = plan.starts[seq] + 1
    plan.positions = plan.slot_positions.copy()
    plan.positions[rows] = roots + depths[seq, node]
    plan.visible[rows] = roots
    plan.paths = np.full((plan.num_rows, paths.shape[2]), -1, dtype=np.int64)
    node_path = paths[seq, node]
    plan.paths[rows] = np.where(node_path >= 0, node_path + roots[:, None], -1)
