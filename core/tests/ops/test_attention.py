from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.native.library import native_library
from paceline.ops import attention
from paceline.ops.attention import paged_attention
from paceline.ops.batch import AttentionBatch
from paceline.ops.exact_attention import ExactAttention
from paceline.ops.native_attention import NativeAttention

BODIES = {"fast": paged_attention, "exact": ExactAttention()}
if native_library() is not None:
    BODIES["native"] = NativeAttention(native_library(), paged_attention)
body = pytest.mark.parametrize("attend", BODIES.values(), ids=BODIES)


def compare(world, seqs, attend, window=None, tolerance=2e-5, **scoring):
    tables = world.tables(seqs)
    batch = world.batch(seqs, tables)
    q = world.queries(batch.num_rows)
    out = attend(q, world.k, world.v, batch, world.scale, window, **scoring)
    assert out.dtype == world.dtype and out.shape == (batch.num_rows, world.heads, world.value_size)
    expected = world.expected(q, seqs, tables, window, **scoring)
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance, equal_nan=False)


def scoring_of(world, softcap, has_sinks):
    """Sinks around the size of the largest scores, so that they take a large share."""
    sinks = torch.linspace(-1, 4, world.heads, dtype=world.dtype) if has_sinks else None
    return {"softcap": softcap, "sinks": sinks}


soft_caps_and_sinks = pytest.mark.parametrize(
    ("softcap", "has_sinks"), [(0.7, False), (None, True), (1.5, True)], ids=["softcap", "sinks", "both"]
)


@body
@pytest.mark.parametrize("window", [None, 1, 3, 50, 64, 1000])
def test_mixed_batch_equals_the_definition(make_world, mixed, attend, window):
    compare(make_world(), mixed(), attend, window)


@body
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (9, 3), (7, 1)])
def test_head_layouts(make_world, mixed, attend, heads, kv_heads):
    compare(make_world(heads=heads, kv_heads=kv_heads, key_size=24, value_size=40), mixed(), attend)


@body
@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
def test_block_sizes(make_world, mixed, attend, block_size):
    compare(make_world(block_size=block_size, num_blocks=4000 // block_size), mixed(), attend)


@body
@soft_caps_and_sinks
@pytest.mark.parametrize("window", [None, 3, 70])
def test_soft_caps_and_sinks(make_world, mixed, attend, softcap, has_sinks, window):
    world = make_world(heads=6, kv_heads=2, key_size=24, value_size=40)
    compare(world, mixed(), attend, window, **scoring_of(world, softcap, has_sinks))


@body
def test_sinks_far_from_the_scores_take_all_or_nothing(make_world, mixed, attend):
    world = make_world(heads=4, kv_heads=2)
    compare(world, mixed(), attend, sinks=torch.tensor([-300.0, 300.0, 300.0, -300.0]))


@soft_caps_and_sinks
def test_pieces_of_long_chunks_do_not_matter(make_world, mixed, softcap, has_sinks, monkeypatch):
    world = make_world()
    monkeypatch.setattr(attention, "_MAX_SCORES", 6 * 90)
    compare(world, mixed(), paged_attention, 20, **scoring_of(world, softcap, has_sinks))


@body
def test_layers_of_one_step_may_differ_in_scoring(make_world, mixed, attend):
    world, seqs = make_world(), mixed()
    tables = world.tables(seqs)
    batch = world.batch(seqs, tables)
    for softcap, has_sinks in ((None, False), (2.0, False), (None, True), (None, False), (0.5, True)):
        scoring = scoring_of(world, softcap, has_sinks)
        q = world.queries(batch.num_rows)
        out = attend(q, world.k, world.v, batch, world.scale, **scoring)
        torch.testing.assert_close(out.double(), world.expected(q, seqs, tables, **scoring), atol=2e-5, rtol=2e-5)


@soft_caps_and_sinks
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_fast_soft_caps_and_sinks_take_any_float(make_world, mixed, dtype, softcap, has_sinks):
    world = make_world(dtype=dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    compare(world, mixed(), paged_attention, tolerance=tolerance, **scoring_of(world, softcap, has_sinks))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_fast_body_takes_any_float(make_world, mixed, dtype):
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    compare(make_world(dtype=dtype), mixed(), paged_attention, tolerance=tolerance)


@body
@pytest.mark.parametrize("seed", range(8))
def test_random_batches(make_world, seq, attend, seed):
    world = make_world(seed=seed)
    rng = world.rng
    seqs = []
    for _ in range(rng.integers(1, 9)):
        start = int(rng.integers(0, 150))
        if rng.random() < 0.4:
            seqs.append(seq.tree(start, [int(rng.integers(-1, node)) for node in range(rng.integers(1, 20))]))
        else:
            seqs.append(
                seq.chain(start, int(rng.choice([1, 1, 2, 6, 16, 17, 60])), first=int(rng.integers(0, start + 1)))
            )
    compare(world, seqs, attend, None if rng.random() < 0.5 else int(rng.integers(1, 100)))


@body
def test_kv_before_first_key_is_not_read(make_world, seq, attend):
    compare(make_world(), [seq.chain(50, 1, first=20), seq.chain(70, 30, first=65), seq.chain(9, 1, first=9)], attend)


@body
@pytest.mark.parametrize("window", [None, 40])
def test_values_left_in_foreign_or_free_slots_do_not_matter(make_world, mixed, attend, window):
    world, seqs = make_world(), mixed()
    tables = world.tables(seqs)
    used = {
        slot for one, table in zip(seqs, tables, strict=True) for slot in world.slots(table, list(range(one.tokens)))
    }
    unused = [slot for slot in range(world.num_blocks * world.block_size) if slot not in used]
    for cache in (world.k, world.v):
        cache.flatten(0, 1)[unused] = float("nan")
    batch = world.batch(seqs, tables)
    q = world.queries(batch.num_rows)
    out = attend(q, world.k, world.v, batch, world.scale, window)
    torch.testing.assert_close(out.double(), world.expected(q, seqs, tables, window), atol=2e-5, rtol=2e-5)


@body
def test_sequences_without_rows_are_skipped(make_world, seq, attend):
    world = make_world()
    seqs = [seq.chain(4, 2), seq(10, []), seq.chain(7, 1)]
    compare(world, seqs, attend)


@body
def test_layers_of_one_step_may_differ_in_window_and_group(make_world, mixed, attend):
    world, wide, seqs = make_world(), make_world(heads=12, kv_heads=2), mixed()
    tables = world.tables(seqs)
    batch = world.batch(seqs, tables)
    for layer, window in ((world, None), (world, 9), (wide, 9), (world, 70), (world, None)):
        q = layer.queries(batch.num_rows)
        out = attend(q, layer.k, layer.v, batch, layer.scale, window)
        torch.testing.assert_close(out.double(), layer.expected(q, seqs, tables, window), atol=2e-5, rtol=2e-5)


@body
def test_indices_are_built_once_a_step(make_world, mixed, attend, monkeypatch):
    world, seqs = make_world(), mixed()
    batch = world.batch(seqs, world.tables(seqs))
    q = world.queries(batch.num_rows)
    sinks = torch.zeros(world.heads)
    for window in (None, 16):
        attend(q, world.k, world.v, batch, world.scale, window)
        attend(q, world.k, world.v, batch, world.scale, window, softcap=3.0)

    def refuse(*_):
        raise AssertionError("built a second time")

    monkeypatch.setattr(AttentionBatch, "upload", refuse)
    for window in (None, 16, None):
        attend(q, world.k, world.v, batch, world.scale, window)
        attend(q, world.k, world.v, batch, world.scale, window, softcap=2.0)
        attend(q, world.k, world.v, batch, world.scale, window, sinks=sinks)


def test_long_and_short_sequences_are_not_padded_to_one_length(make_world, seq):
    world = make_world()
    seqs = [seq.chain(1000, 1), *(seq.chain(10, 1) for _ in range(20))]
    batch = world.batch(seqs, world.tables(seqs))
    paged_attention(world.queries(21), world.k, world.v, batch, world.scale)
    plan = next(value for key, value in batch._cache.items() if key[0] == "fast")
    assert sum(len(panel.key_slots) for panel in plan.panels) < 1008 + 20 * 16 + 1


def test_rows_of_many_requests_run_as_one_panel(make_world, seq):
    world = make_world()
    seqs = [seq.chain(30 + i, 1 + i % 5) for i in range(12)]
    batch = world.batch(seqs, world.tables(seqs))
    paged_attention(world.queries(batch.num_rows), world.k, world.v, batch, world.scale)
    plan = next(value for key, value in batch._cache.items() if key[0] == "fast")
    assert len(plan.panels) == 1


def test_batch_arrays_are_copies():
    tables = np.array([[3, 4]], dtype=np.int32)
    batch = AttentionBatch.build(
        query_starts=np.array([0, 2]),
        visible=np.array([1, 2]),
        slots=np.array([6, -1]),
        block_tables=tables,
        block_size=2,
    )
    tables[:] = 9
    assert batch.block_tables.tolist() == [[3, 4]] and batch.block_tables.dtype == torch.int64
    assert batch.write_rows.tolist() == [0] and batch.write_slots.tolist() == [6]
    assert batch.num_rows == 2 and batch.row_seq.tolist() == [0, 0] and batch.num_keys.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"visible": np.array([0, 2])}, "at least itself"),
        ({"visible": np.array([1])}, "number of rows"),
        ({"query_starts": np.array([1, 2])}, "begin at 0"),
        ({"first_keys": np.array([1])}, "at least itself"),
    ],
)
def test_wrong_batches_are_caught(change, message):
    arrays = {
        "query_starts": np.array([0, 2]),
        "visible": np.array([1, 2]),
        "slots": np.array([6, 7]),
        "block_tables": np.array([[3, 4]]),
    }
    with pytest.raises(AssertionError, match=message):
        AttentionBatch.build(**{**arrays, **change}, block_size=2)
