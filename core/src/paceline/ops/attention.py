"""Paged attention, fast body: torch operations that run on any device and in any floating dtype."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from paceline.ops.batch import AttentionBatch, Int64Array
from paceline.ops.panels import (
    Units,
    cut_units,
    in_order,
    output_order,
    padded_rows,
    reduce_rows,
    slots_of,
    split_by_size,
)

CHUNK_ROWS = 16  # sequences with more rows than this run on their own
_FEW_ROWS = 8  # sequences with at most this many rows are not padded to CHUNK_ROWS
_KEY_RATIO = 4  # sequences whose key counts differ by more are not padded to one length
_MAX_GATHERED_KEYS = 1 << 20
_KEY_MULTIPLE = 8  # mask rows that CUDA's memory-efficient kernel takes without a copy
_MAX_SCORES = 1 << 26  # scores held at a time where no fused kernel does the arithmetic


@dataclass(slots=True)
class _Panel:
    """B sequences with R padded rows and L padded keys each."""

    shape: tuple[int, int, int]  # B, R, L
    rows: torch.Tensor | None  # [B*R], None = all rows of the batch in order
    key_slots: torch.Tensor  # [B*L]
    mask: torch.Tensor | None  # additive, [B, 1, R*G, L] (B > 1 or few rows) or [1, 1, R, L] (chunk); None = causal


@dataclass(slots=True)
class _Plan:
    panels: list[_Panel]
    order: torch.Tensor | None


@dataclass(slots=True, frozen=True)
class _Layout:
    """What a plan depends on besides the batch."""

    window: int | None
    group: int
    dtype: torch.dtype
    is_fused: bool


@dataclass(slots=True, frozen=True)
class _Scoring:
    """From products of queries and keys to weights."""

    scale: float
    softcap: float | None
    sinks: torch.Tensor | None  # [H]

    @property
    def is_fused(self) -> bool:
        """Whether torch's fused kernel knows this arithmetic."""
        return self.softcap is None and self.sinks is None


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of every row over the KV that its sequence's block table and its tree path name.

    The rows' own keys and values must have been written already. Rows of sequences with at most 16 rows run
    together, longer runs (prompt chunks) sequence by sequence.

    Args:
        q: [T, H, D] queries, H a multiple of the KV heads (grouped-query attention).
        k_cache: [num_blocks, block_size, kv_heads, D] of this layer, same dtype and device as q.
        v_cache: [num_blocks, block_size, kv_heads, Dv].
        batch: The step's rows.
        scale: Factor of the scores.
        window: A row at position p sees positions > p - window only; None = all.
        softcap: Scores become softcap * tanh(score / softcap); None = they stay.
        sinks: [H] a further score of each head, whose share of the softmax goes nowhere; None = there is none.

    Returns:
        [T, H, Dv]
    """
    scoring = _Scoring(scale, softcap, sinks)
    layout = _Layout(window, q.shape[1] // k_cache.shape[2], q.dtype, scoring.is_fused)
    plan = batch.cached(("fast", layout), lambda: _plan(batch, layout))
    parts = [_attend(panel, q, k_cache, v_cache, scoring) for panel in plan.panels]
    return in_order(batch, parts, plan.order)


def _attend(
    panel: _Panel, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, scoring: _Scoring
) -> torch.Tensor:
    num_seqs, num_rows, num_keys = panel.shape
    kv_heads = k_cache.shape[2]
    rows = q if panel.rows is None else q.index_select(0, panel.rows)
    heads = rows.view(num_seqs, num_rows, kv_heads, -1, q.shape[2])
    keys = _gather(k_cache, panel).view(num_seqs, num_keys, kv_heads, -1).transpose(1, 2)
    values = _gather(v_cache, panel).view(num_seqs, num_keys, kv_heads, -1).transpose(1, 2)
    attend = _attend_chunk if num_rows > CHUNK_ROWS else _attend_few
    out = attend(heads, keys, values, panel.mask, scoring)
    return out.reshape(num_seqs * num_rows, q.shape[1], -1)


def _attend_few(
    heads: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scoring: _Scoring
) -> torch.Tensor:
    """The query heads that share a KV head become rows of it: [B, R, Hkv, G, D] -> [B, R, Hkv, G, Dv]."""
    num_seqs, num_rows, kv_heads, group, _ = heads.shape
    folded = heads.transpose(1, 2).reshape(num_seqs, kv_heads, num_rows * group, -1)
    sinks = None if scoring.sinks is None else scoring.sinks.view(1, kv_heads, group).repeat(1, 1, num_rows)
    out = _softmax_attention(folded, keys, values, mask, scoring, sinks)
    return out.view(num_seqs, kv_heads, num_rows, group, -1).transpose(1, 2)


def _attend_chunk(
    heads: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scoring: _Scoring
) -> torch.Tensor:
    """KV heads become the batch, and their keys serve the group: [1, R, Hkv, G, D] -> the same with Dv."""
    _, num_rows, kv_heads, group, _ = heads.shape
    queries = heads[0].permute(1, 2, 0, 3)
    keys, values = (side[0].unsqueeze(1) for side in (keys, values))
    sinks = None if scoring.sinks is None else scoring.sinks.view(kv_heads, group, 1).expand(-1, -1, num_rows)
    return _softmax_attention(queries, keys, values, mask, scoring, sinks).permute(2, 0, 1, 3)


def _softmax_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scoring: _Scoring,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """queries [A, B, M, D] on keys [A, B or 1, L, D] with sinks [A or 1, B, M]; no mask = causal."""
    if scoring.is_fused:
        keys, values = (side.expand(-1, queries.shape[1], -1, -1) for side in (keys, values))
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scoring.scale
        )
    assert mask is not None
    count = max(1, _MAX_SCORES // (queries.shape[0] * queries.shape[1] * keys.shape[2]))
    outs = []
    for start in range(0, queries.shape[2], count):
        rows = slice(start, start + count)
        weights = _products(queries[:, :, rows], keys.mT).to(torch.promote_types(queries.dtype, torch.float32))
        weights = _weights(weights, mask[:, :, rows], scoring, None if sinks is None else sinks[:, :, rows, None])
        outs.append(_products(weights.to(values.dtype), values))
    return torch.cat(outs, 2)


def _weights(scores: torch.Tensor, mask: torch.Tensor, scoring: _Scoring, sinks: torch.Tensor | None) -> torch.Tensor:
    """Unscaled scores [A, B, M, L] to weights; scores are overwritten."""
    scores *= scoring.scale
    if scoring.softcap is not None:
        scores.div_(scoring.softcap).tanh_().mul_(scoring.softcap)
    scores += mask
    if sinks is None:
        return scores.softmax(-1)
    sinks = sinks.to(scores.dtype).expand(*scores.shape[:3], 1)
    return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]


def _products(rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """rows [A, B, M, I] @ matrices [A, B or 1, I, O] without copies of matrices that B rows share."""
    folded = rows.reshape(rows.shape[0], matrices.shape[1], -1, rows.shape[3])
    return (folded @ matrices).view(*rows.shape[:3], -1)


def _gather(cache: torch.Tensor, panel: _Panel) -> torch.Tensor:
    return cache.view(cache.shape[0] * cache.shape[1], -1).index_select(0, panel.key_slots)


def _plan(batch: AttentionBatch, layout: _Layout) -> _Plan:
    units = cut_units(batch, np.full(len(batch.first_keys), max(1, batch.num_rows)))
    first, last = _key_ranges(batch, layout.window)
    spans = reduce_rows(np.maximum, last, units) - reduce_rows(np.minimum, first, units)
    chosen = [units[indices] for indices in _panel_units(units, spans)]
    panels = [_panel(batch, panel_units, layout) for panel_units in chosen]
    return _Plan(panels, output_order(batch, [padded_rows(panel_units) for panel_units in chosen]))


def _panel_units(units: Units, spans: Int64Array) -> list[Int64Array]:
    groups = [np.array([index]) for index in np.flatnonzero(units.lengths > CHUNK_ROWS)]
    for low, high in ((0, _FEW_ROWS), (_FEW_ROWS, CHUNK_ROWS)):
        members = np.flatnonzero((units.lengths > low) & (units.lengths <= high))
        groups += [members[group] for group in split_by_size(spans[members], _KEY_RATIO, _MAX_GATHERED_KEYS)]
    return groups


def _key_ranges(batch: AttentionBatch, window: int | None) -> tuple[Int64Array, Int64Array]:
    """Table entries [first, last) that hold what a row attends to, [T] each.

    A deep tree row with a short window may see entries before its own `first`, but never before that of its
    tree's first level.
    """
    last = batch.visible if batch.paths is None else np.maximum(batch.visible, batch.paths.max(axis=1) + 1)
    return batch.lowest_keys(window), last


def _panel(batch: AttentionBatch, units: Units, layout: _Layout) -> _Panel:
    window = layout.window
    first, last = _key_ranges(batch, window)
    starts, ends = reduce_rows(np.minimum, first, units), reduce_rows(np.maximum, last, units)
    rows = padded_rows(units)
    causal = layout.is_fused and _is_causal_square(batch, rows, batch.lowest_keys(window))
    num_keys = int((ends - starts).max())
    num_keys += 0 if causal else -num_keys % _KEY_MULTIPLE
    entries = batch.upload(starts)[:, None] + torch.arange(num_keys, device=batch.device)
    # Padding repeats the sequence's own last entry: what other requests left in free slots is never read.
    slots = slots_of(batch, units.seqs, torch.minimum(entries, batch.upload(ends)[:, None] - 1))
    whole = rows.size == batch.num_rows and (rows.reshape(-1) == np.arange(rows.size)).all()
    return _Panel(
        shape=(*rows.shape, num_keys),
        rows=None if whole else batch.upload(rows.reshape(-1)),
        key_slots=slots.reshape(-1),
        mask=None if causal else _additive(_visible(batch, rows, entries, window), layout.group, layout.dtype),
    )


def _is_causal_square(batch: AttentionBatch, rows: Int64Array, lowest: Int64Array) -> bool:
    """Whether this is one long chunk that begins at position 0 and sees everything before each row."""
    chunk = rows[0]
    if len(rows) > 1 or len(chunk) <= CHUNK_ROWS:
        return False
    chain = (batch.visible[chunk] == np.arange(1, len(chunk) + 1)).all()
    return bool(chain and (batch.num_keys[chunk] == batch.visible[chunk]).all() and not lowest[chunk].any())


def _visible(batch: AttentionBatch, rows: Int64Array, entries: torch.Tensor, window: int | None) -> torch.Tensor:
    """Whether row [B, R] sees table entry [B, L]: bool [B, R, L]."""
    lowest = batch.upload(batch.lowest_keys(window)[rows])
    prefix = batch.upload(batch.visible[rows])
    mask = (entries[:, None] >= lowest[..., None]) & (entries[:, None] < prefix[..., None])
    if batch.paths is None:
        return mask
    paths = batch.upload(batch.paths[rows])
    positions = prefix[..., None] + torch.arange(paths.shape[2], device=batch.device)
    seen = (paths >= 0) & (positions >= lowest[..., None])
    spare = entries.shape[1]
    columns = torch.where(seen, paths - entries[:, :1, None], spare)
    return F.pad(mask, (0, 1)).scatter_(2, columns, True)[..., :spare]


def _additive(visible: torch.Tensor, group: int, dtype: torch.dtype) -> torch.Tensor:
    """Mask for the scores: [B, 1, R*G, L] if the group is folded into few rows, else [1, 1, R, L]."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
    if visible.shape[1] <= CHUNK_ROWS:
        mask = mask.repeat_interleave(group, dim=1)
    return mask.unsqueeze(1)
