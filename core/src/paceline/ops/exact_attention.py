"""Exact paged attention on CPU in float32.

Keys are cut into tiles of 64 at absolute positions. Every score tile and every product of probabilities and values
has one of a few fixed shapes, tiles are added up in position order, and what a row does not see contributes exact
zeros. So a row's result depends on its own keys only: not on the batch, the chunking, or whether it is a chain row
or a tree row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from paceline.ops.batch import AttentionBatch, Int64Array
from paceline.ops.exact import NumericsError, exact_elementwise
from paceline.ops.exact_self_test import TILE_KEYS, VALUE_COLUMNS, query_tiles
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

_TILE_RATIO = 2  # units whose tile counts differ by more do not share a panel
_MAX_KEY_ELEMENTS = 1 << 21  # gathered keys of one panel


@dataclass(slots=True)
class _Panel:
    """B units of R rows; M = padded query rows of a KV head; N key tiles."""

    rows: torch.Tensor  # [B*R]
    num_units: int
    query_rows: int  # M
    key_index: torch.Tensor  # [N*B*Hkv*64] into the cache viewed as [slots * Hkv, size]
    hidden: torch.Tensor  # bool [N, B, 1, M, 64]: not seen


@dataclass(slots=True)
class _Plan:
    panels: list[_Panel]
    order: torch.Tensor | None


class ExactAttention:
    """Callable with the signature of `paceline.ops.attention.paged_attention`, CPU and float32 only.

    The first call with a pair of head sizes runs the self-test of the matrix kernels for it.

    Raises:
        NumericsError: The kernels have no shapes that keep exact numerics, or the model has more query heads for a
            KV head than the largest.
    """

    def __init__(self) -> None:
        self._tiles: dict[tuple[int, int], tuple[int, ...]] = {}

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        kv_heads = k_cache.shape[2]
        group = q.shape[1] // kv_heads
        tiles = self._query_tiles(k_cache.shape[3], v_cache.shape[3], group)
        key = ("exact", window, kv_heads, group, tiles)
        with torch._C.DisableTorchFunction():
            plan = batch.cached(key, lambda: _plan(batch, window, kv_heads, group, tiles))
            scaled = q * scale
            grouped_sinks = None if sinks is None else sinks.view(kv_heads, group)
            parts = [_attend(panel, scaled, k_cache, v_cache, softcap, grouped_sinks) for panel in plan.panels]
            return in_order(batch, parts, plan.order)

    def _query_tiles(self, key_size: int, value_size: int, group: int) -> tuple[int, ...]:
        sizes = (key_size, value_size)
        if sizes not in self._tiles:
            with torch._C.DisableTorchFunction():
                self._tiles[sizes] = query_tiles(key_size, value_size)
        if group > self._tiles[sizes][-1]:
            raise NumericsError(
                f"exact numerics: {group} query heads share one KV head, and at most {self._tiles[sizes][-1]} rows can "
                f'run together with heads of size {key_size} and {value_size} on this CPU; use numerics="fast"'
            )
        return self._tiles[sizes]


def _attend(
    panel: _Panel,
    scaled: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """[B*R, H, Dv] of one panel; sinks [Hkv, G]."""
    kv_heads, value_size = v_cache.shape[2:]
    num_tiles = panel.hidden.shape[0]
    queries = _queries(panel, scaled, kv_heads)
    scores = _scores(panel, queries, _gather(k_cache, panel, num_tiles), softcap)
    top = scores.amax((0, 3))
    total = torch.zeros_like(top)
    if sinks is not None:
        total += exact_elementwise(torch.exp, _sink_rows(panel, sinks) - top)
    weights = exact_elementwise(torch.exp, scores.sub_(top.unsqueeze(-1)))
    totals = weights.sum(-1)
    values = _padded_values(_gather(v_cache, panel, num_tiles))
    out = scaled.new_zeros(queries.shape[0], panel.query_rows, values.shape[3])
    for tile in range(num_tiles):
        out.baddbmm_(weights[tile], values[tile])
        total += totals[tile]
    return _rows(panel, out / total.unsqueeze(-1), scaled.shape[1])[..., :value_size]


def _scores(panel: _Panel, queries: torch.Tensor, keys: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """[N, B*Hkv, M, 64], -inf where hidden."""
    scores = queries.new_empty(len(keys), len(queries), panel.query_rows, TILE_KEYS)
    for tile, tile_keys in enumerate(keys):
        torch.bmm(queries, tile_keys.transpose(1, 2), out=scores[tile])
    if softcap is not None:
        scores = exact_elementwise(torch.tanh, scores.div_(softcap)).mul_(softcap)
    by_unit = scores.view(len(keys), panel.num_units, -1, panel.query_rows, TILE_KEYS)
    by_unit.masked_fill_(panel.hidden, float("-inf"))
    return scores


def _sink_rows(panel: _Panel, sinks: torch.Tensor) -> torch.Tensor:
    """The sink of each row of `_queries`: [B*Hkv, M]."""
    kv_heads, group = sinks.shape
    used = len(panel.rows) // panel.num_units * group
    rows = sinks.new_zeros(panel.num_units, kv_heads, panel.query_rows)
    rows[..., :used] = sinks.repeat(1, used // group)
    return rows.view(-1, panel.query_rows)


def _queries(panel: _Panel, scaled: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Rows and the query heads of a KV head side by side, padded with zeros: [B*Hkv, M, D]."""
    num_heads, size = scaled.shape[1:]
    group = num_heads // kv_heads
    rows = scaled.index_select(0, panel.rows).view(panel.num_units, -1, kv_heads, group, size).transpose(1, 2)
    used = rows.shape[2] * group
    padded = scaled.new_zeros(panel.num_units, kv_heads, panel.query_rows, size)
    padded[:, :, :used] = rows.reshape(panel.num_units, kv_heads, used, size)
    return padded.view(-1, panel.query_rows, size)


def _rows(panel: _Panel, out: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo `_queries`: [B*Hkv, M, Dv] -> [B*R, H, Dv]."""
    num_rows = len(panel.rows) // panel.num_units
    by_head = out.view(panel.num_units, -1, *out.shape[1:])
    group = num_heads // by_head.shape[1]
    used = by_head[:, :, : num_rows * group].unflatten(2, (num_rows, group))
    return used.transpose(1, 2).reshape(len(panel.rows), num_heads, -1)


def _gather(cache: torch.Tensor, panel: _Panel, num_tiles: int) -> torch.Tensor:
    """[N, B*Hkv, 64, size]"""
    size = cache.shape[3]
    return cache.view(-1, size).index_select(0, panel.key_index).view(num_tiles, -1, TILE_KEYS, size)


def _padded_values(values: torch.Tensor) -> torch.Tensor:
    padding = -values.shape[3] % VALUE_COLUMNS
    return F.pad(values, (0, padding)) if padding else values


def _plan(batch: AttentionBatch, window: int | None, kv_heads: int, group: int, tiles: tuple[int, ...]) -> _Plan:
    units = cut_units(batch, _unit_rows(batch, tiles[-1] // group))
    lowest = reduce_rows(np.minimum, batch.lowest_keys(window), units) // TILE_KEYS
    num_tiles = -(-reduce_rows(np.maximum, batch.num_keys, units) // TILE_KEYS) - lowest
    counts = np.array(tiles)[np.searchsorted(tiles, units.lengths * group)]
    panels, panel_rows = [], []
    for count in np.unique(counts):
        members = np.flatnonzero(counts == count)
        max_tiles = _MAX_KEY_ELEMENTS // (kv_heads * TILE_KEYS * max(TILE_KEYS, int(count)))
        for chosen in split_by_size(num_tiles[members], _TILE_RATIO, max_tiles):
            picked = units[members[chosen]]
            panels.append(_panel(batch, picked, window, kv_heads, group, int(count)))
            panel_rows.append(padded_rows(picked))
    return _Plan(panels, output_order(batch, panel_rows))


def _unit_rows(batch: AttentionBatch, max_rows: int) -> Int64Array:
    """Rows that may share keys, for each sequence: those of a tree have keys of their own."""
    rows = np.full(len(batch.first_keys), max_rows)
    if batch.paths is not None:
        rows[batch.row_seq[(batch.paths >= 0).any(axis=1)]] = 1
    return rows


def _panel(
    batch: AttentionBatch, units: Units, window: int | None, kv_heads: int, group: int, query_rows: int
) -> _Panel:
    rows = padded_rows(units)
    lowest, num_keys = batch.lowest_keys(window)[rows], batch.num_keys[rows]
    first_tiles = lowest.min(axis=1) // TILE_KEYS
    num_tiles = int((-(-num_keys.max(axis=1) // TILE_KEYS) - first_tiles).max())
    span = torch.arange(num_tiles * TILE_KEYS)
    positions = batch.upload(first_tiles * TILE_KEYS)[:, None] + span
    slots = _key_slots(batch, units, rows, positions)
    seen = (positions[:, None] >= batch.upload(lowest)[..., None]) & (
        positions[:, None] < batch.upload(num_keys)[..., None]
    )
    return _Panel(
        rows=batch.upload(rows.reshape(-1)),
        num_units=len(units),
        query_rows=query_rows,
        key_index=_head_index(slots.view(len(units), num_tiles, TILE_KEYS), kv_heads),
        hidden=_hidden(seen.repeat_interleave(group, dim=1), query_rows),
    )


def _key_slots(batch: AttentionBatch, units: Units, rows: Int64Array, positions: torch.Tensor) -> torch.Tensor:
    """Global slots of the keys at positions [B, L] of each unit.

    Positions outside the unit's keys name one of its own keys: what other requests left in free slots is never read.
    """
    lowest = batch.upload(batch.first_keys[units.seqs])[:, None]
    ends = batch.upload(batch.num_keys[rows].max(axis=1))[:, None]
    entries = torch.maximum(torch.minimum(positions, ends - 1), lowest)
    if batch.paths is not None:
        prefix = batch.upload(batch.visible[rows].max(axis=1))[:, None]
        paths = batch.upload(batch.paths[units.starts])
        steps = (entries - prefix).clamp(0, paths.shape[1] - 1)
        entries = torch.where(entries < prefix, entries, paths.gather(1, steps))
    return slots_of(batch, units.seqs, entries)


def _head_index(slots: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[B, N, 64] -> flat [N, B, Hkv, 64] of slot * kv_heads + head."""
    heads = torch.arange(kv_heads)[None, None, :, None]
    return (slots.transpose(0, 1).unsqueeze(2) * kv_heads + heads).reshape(-1)


def _hidden(seen: torch.Tensor, query_rows: int) -> torch.Tensor:
    """[B, R*G, N*64] -> [N, B, 1, M, 64], negated; padded rows see everything."""
    num_units, used, num_keys = seen.shape
    hidden = torch.zeros(num_units, query_rows, num_keys, dtype=torch.bool)
    hidden[:, :used] = ~seen
    return hidden.view(num_units, query_rows, -1, TILE_KEYS).permute(2, 0, 1, 3).unsqueeze(2).contiguous()
