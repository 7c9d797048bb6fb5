from __future__ import annotations

import itertools

import pytest
import torch

from paceline.native.library import native_library
from paceline.ops import exact_attention
from paceline.ops.exact import NumericsError
from paceline.ops.exact_attention import ExactAttention
from paceline.ops.exact_self_test import query_tiles
from paceline.ops.native_attention import NativeAttention

BODY = [ExactAttention()]


@pytest.fixture(autouse=True, params=["torch", "native"])
def in_use(request):
    """The body that ``run`` and ``rows_alone`` call."""
    library = native_library()
    if request.param == "native" and library is None:
        pytest.skip("the native kernels cannot be built here")
    BODY[0] = ExactAttention() if request.param == "torch" else NativeAttention(library, ExactAttention())
    yield
    BODY[0] = ExactAttention()


SIZES = [(6, 2, 16, 16), (9, 3, 64, 64), (4, 4, 50, 24), (8, 1, 80, 80), (3, 1, 16, 24)]
layouts = pytest.mark.parametrize("layout", SIZES, ids=str)
windows = pytest.mark.parametrize("window", [None, 1, 70])


def world_of(make_world, layout, seed=0):
    heads, kv_heads, key_size, value_size = layout
    return make_world(seed=seed, heads=heads, kv_heads=kv_heads, key_size=key_size, value_size=value_size)


def run(world, q, seqs, tables, window=None, **scoring):
    return BODY[0](q, world.k, world.v, world.batch(seqs, tables), world.scale, window, **scoring)


def rows_alone(world, q, seqs, tables, window=None, **scoring):
    """Every row as the only row of a step."""
    attend = BODY[0]
    outs, t = [], 0
    for one, table in zip(seqs, tables, strict=True):
        for row in one.rows:
            alone = type(one)(one.tokens, [row], one.first)
            batch = world.batch([alone], [table])
            outs.append(attend(q[t : t + 1], world.k, world.v, batch, world.scale, window, **scoring))
            t += 1
    return torch.cat(outs)


@layouts
@windows
def test_rows_do_not_depend_on_the_batch(make_world, mixed, layout, window):
    world, seqs = world_of(make_world, layout), mixed()
    tables = world.tables(seqs)
    q = world.queries(sum(len(one.rows) for one in seqs))
    assert torch.equal(run(world, q, seqs, tables, window), rows_alone(world, q, seqs, tables, window))


@layouts
@pytest.mark.parametrize(("window", "softcap", "has_sinks"), [(None, 1.3, False), (70, None, True), (None, 1.3, True)])
def test_nor_with_soft_caps_and_sinks(make_world, mixed, layout, window, softcap, has_sinks):
    world, seqs = world_of(make_world, layout), mixed()[2:5]
    tables = world.tables(seqs)
    q = world.queries(sum(len(one.rows) for one in seqs))
    scoring = {"softcap": softcap, "sinks": torch.linspace(-1, 4, world.heads) if has_sinks else None}
    batched = run(world, q, seqs, tables, window, **scoring)
    assert torch.equal(batched, rows_alone(world, q, seqs, tables, window, **scoring))


def test_nor_with_soft_caps_and_sinks_on_threads(make_world, seq):
    """Large enough that torch would cut the scores at places that follow their number."""
    torch.set_num_threads(3)
    try:
        world = make_world(num_blocks=2000)
        seqs = [seq.chain(70 + index % 50, 1) for index in range(101)]
        tables = world.tables(seqs)
        q = world.queries(101)
        scoring = {"softcap": 1.3, "sinks": torch.linspace(-1, 4, world.heads)}
        batched = run(world, q, seqs, tables, **scoring)
        assert torch.equal(batched, rows_alone(world, q, seqs, tables, **scoring))
    finally:
        torch.set_num_threads(1)


@layouts
def test_nor_with_several_threads(make_world, seq, threads, layout):
    world = world_of(make_world, layout)
    seqs = [seq.chain(70, 1), seq.tree(65, [-1, 0, 0]), seq.chain(0, 24), seq.chain(126, 5)]
    tables = world.tables(seqs)
    q = world.queries(33)
    assert torch.equal(run(world, q, seqs, tables), rows_alone(world, q, seqs, tables))


@pytest.mark.parametrize("seed", range(12))
def test_random_batch_sizes(make_world, seq, seed):
    world = make_world(seed=seed, heads=9, kv_heads=3, key_size=64, value_size=64)
    rng = world.rng
    count = int(rng.integers(1, 24))
    seqs = [seq.chain(int(rng.integers(0, 100)), int(rng.choice([1, 2, 3, 5, 9, 25]))) for _ in range(count)]
    tables = world.tables(seqs)
    q = world.queries(sum(len(one.rows) for one in seqs))
    assert torch.equal(run(world, q, seqs, tables), rows_alone(world, q, seqs, tables))


@layouts
@windows
def test_chunking_does_not_matter(make_world, seq, layout, window):
    world = world_of(make_world, layout, seed=1)
    table = world.table(200)
    q = world.queries(200)
    whole = run(world, q, [seq.chain(0, 200)], [table], window)
    for cuts in ([0, 1, 3, 64, 65, 130, 200], [0, 100, 200], [0, 63, 128, 191, 200]):
        parts = [run(world, q[a:b], [seq.chain(a, b - a)], [table], window) for a, b in itertools.pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole)


@layouts
@windows
@pytest.mark.parametrize("committed", [1, 60, 64, 127])
def test_a_tree_row_equals_the_chain_row_of_its_path(make_world, seq, layout, window, committed):
    world = world_of(make_world, layout, seed=2)
    tree = seq.tree(committed, [-1, -1, 0, 1, 1, 3, 5, 6, 7])
    table = world.table(tree.tokens)
    q = world.queries(len(tree.rows))
    drafted = run(world, q, [tree], [table], window)
    path = tree.rows[8][1]
    chain = seq.chain(committed, len(path))
    moved = world.table(chain.tokens)
    src, dst = world.slots(table, [*range(committed), *path]), world.slots(moved, list(range(chain.tokens)))
    for cache in (world.k, world.v):
        cache.flatten(0, 1)[dst] = cache.flatten(0, 1)[src]
    nodes = [entry - committed for entry in path]
    assert torch.equal(run(world, q[nodes], [chain], [moved], window), drafted[nodes])


def test_block_layout_does_not_matter(make_world, seq):
    outs = []
    for block_size in (4, 64):
        world = make_world(block_size=block_size, num_blocks=1600 // block_size)
        one = seq.chain(120, 7)
        table = world.table(one.tokens)
        generator = torch.Generator().manual_seed(5)
        slots = world.slots(table, list(range(one.tokens)))
        for cache in (world.k, world.v):
            cache.flatten(0, 1)[slots] = torch.randn(one.tokens, *cache.shape[2:], generator=generator)
        q = torch.randn(7, world.heads, world.key_size, generator=generator)
        outs.append(run(world, q, [one], [table]))
    assert torch.equal(*outs)


def test_long_contexts_and_panel_limits_do_not_matter(make_world, seq, monkeypatch):
    world = make_world(num_blocks=600)
    seqs = [seq.chain(1500, 2), seq.chain(20, 40), seq.chain(700, 30), seq.chain(11, 1)]
    tables = world.tables(seqs)
    q = world.queries(73)
    once = run(world, q, seqs, tables)
    monkeypatch.setattr(exact_attention, "_MAX_KEY_ELEMENTS", 1)
    assert torch.equal(run(world, q, seqs, tables), once)


def test_the_self_test_finds_counts(threads):
    tiles = query_tiles(64, 64)
    assert tiles == tuple(sorted(tiles)) and tiles


def test_a_kernel_that_depends_on_the_batch_is_refused(monkeypatch):
    true_bmm = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b, **kw: true_bmm(a, b, **kw) * (1 + 1e-6 * (len(a) == 5)))
    with pytest.raises(NumericsError) as caught:
        query_tiles(16, 16)
    assert "heads of size 16 and 16" in str(caught.value) and "batch size" in str(caught.value)
    assert 'use numerics="fast"' in str(caught.value) and str(caught.value).startswith("PACELINE-E320")


def test_too_many_query_heads_for_a_kv_head(make_world, seq, monkeypatch):
    monkeypatch.setattr(exact_attention, "query_tiles", lambda *_: (4, 8))
    world = make_world(heads=9, kv_heads=1)
    with pytest.raises(NumericsError, match=r"9 query heads share one KV head, and at most 8 rows .* size 16 and 16"):
        batch = world.batch([seq.chain(3, 1)], [world.table(4)])
        ExactAttention()(world.queries(1), world.k, world.v, batch, world.scale)
