"""Random paged KV worlds, and attention computed row by row in float64 straight from the definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from paceline.ops.batch import AttentionBatch


@dataclass
class Seq:
    """A sequence in the cache: `rows` are the key lists (entries of its block table) of its query rows."""

    tokens: int  # entries that hold KV, drafts included
    rows: list[tuple[int, list[int]]]  # (visible, path)
    first: int = 0

    @classmethod
    def chain(cls, start: int, count: int, first: int = 0) -> Seq:
        return cls(start + count, [(position + 1, []) for position in range(start, start + count)], first)

    @classmethod
    def tree(cls, committed: int, parents: list[int]) -> Seq:
        paths: list[list[int]] = []
        for node, parent in enumerate(parents):
            paths.append([*(paths[parent] if parent >= 0 else []), committed + node])
        return cls(committed + len(parents), [(committed, path) for path in paths])


@dataclass
class World:
    """KV tensors with random contents and blocks of the sequences scattered over them."""

    seed: int = 0
    heads: int = 6
    kv_heads: int = 2
    key_size: int = 16
    value_size: int = 16
    block_size: int = 8
    num_blocks: int = 400
    dtype: torch.dtype = torch.float32
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.k = self._noise(self.num_blocks, self.block_size, self.kv_heads, self.key_size)
        self.v = self._noise(self.num_blocks, self.block_size, self.kv_heads, self.value_size)
        self.free = list(self.rng.permutation(self.num_blocks))
        self.scale = self.key_size**-0.5

    def _noise(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.standard_normal(shape)).to(self.dtype)

    def queries(self, num_rows: int) -> torch.Tensor:
        return self._noise(num_rows, self.heads, self.key_size)

    def table(self, num_tokens: int) -> list[int]:
        return [int(self.free.pop()) for _ in range(-(-num_tokens // self.block_size))]

    def tables(self, seqs: list[Seq]) -> list[list[int]]:
        return [self.table(seq.tokens) for seq in seqs]

    def batch(self, seqs: list[Seq], tables: list[list[int]]) -> AttentionBatch:
        rows = [row for seq in seqs for row in seq.rows]
        width = max(len(path) for _, path in rows)
        padded = np.array([path + [-1] * (width - len(path)) for _, path in rows]).reshape(len(rows), width)
        longest = max(map(len, tables))
        return AttentionBatch.build(
            query_starts=np.cumsum([0, *(len(seq.rows) for seq in seqs)]),
            visible=np.array([visible for visible, _ in rows]),
            slots=np.full(len(rows), -1),
            block_tables=np.array([[*table, *[0] * (longest - len(table))] for table in tables]),
            block_size=self.block_size,
            paths=padded if width else None,
            first_keys=np.array([seq.first for seq in seqs]),
        )

    def slots(self, table: list[int], entries: list[int]) -> list[int]:
        return [table[entry // self.block_size] * self.block_size + entry % self.block_size for entry in entries]

    def expected(
        self,
        q: torch.Tensor,
        seqs: list[Seq],
        tables: list[list[int]],
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        rows = [(seq, table, row) for seq, table in zip(seqs, tables, strict=True) for row in seq.rows]
        return torch.stack([self._row(q[t], *rows[t], window, softcap, sinks) for t in range(len(rows))])

    def _row(
        self,
        q: torch.Tensor,
        seq: Seq,
        table: list[int],
        row: tuple[int, list[int]],
        window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        entries = [*range(row[0]), *row[1]]
        lowest = max(seq.first, 0 if window is None else len(entries) - window)
        slots = self.slots(table, entries[lowest:])
        group = self.heads // self.kv_heads
        keys = self.k.double().flatten(0, 1)[slots].repeat_interleave(group, dim=1)
        values = self.v.double().flatten(0, 1)[slots].repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,lhd->hl", q.double(), keys) * self.scale
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        weights = scores.exp()
        total = weights.sum(-1) + (0 if sinks is None else sinks.double().exp())
        return torch.einsum("hl,lhd->hd", weights / total.unsqueeze(-1), values)


@pytest.fixture
def make_world() -> type[World]:
    return World


@pytest.fixture
def seq() -> type[Seq]:
    return Seq


@pytest.fixture
def mixed() -> Callable[[], list[Seq]]:
    """Decodes, draft chains, a tree, prompt chunks with and without history."""

    def build() -> list[Seq]:
        return [
            Seq.chain(5, 1),
            Seq.chain(0, 40),
            Seq.tree(70, [-1, -1, 0, 0, 2, 1, 5]),
            Seq.chain(130, 5),
            Seq.chain(61, 33),
            Seq.chain(0, 1),
            Seq.tree(3, [-1, 0, 1, -1]),
            Seq.chain(300, 12),
            Seq.chain(64, 1),
        ]

    return build


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
