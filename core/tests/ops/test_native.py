"""The native kernels: what they compute, that rows do not depend on rows, and where they cannot be built."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.native import build, library
from paceline.native.build import NativeBuildError, built_library
from paceline.native.library import NativeKernelWarning, native_library, pack, pack_nibbles
from paceline.ops.attention import paged_attention
from paceline.ops.native_attention import HEAD_SIZES, NativeAttention
from paceline.ops.native_rows import native_rows
from paceline.ops.nibbles import rounded_to_nibbles
from paceline.ops.packed_linear import packed_beside


@pytest.fixture(scope="module")
def native():
    made = native_library()
    if made is None:
        pytest.skip("the native kernels cannot be built here")
    return made


SHAPES = [(1, 1), (7, 5), (64, 48), (64, 49), (100, 130), (576, 192)]


@pytest.mark.parametrize(("size", "columns"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_those_of_the_definition(native, size, columns, has_bias):
    weight, bias = torch.randn(columns, size), torch.randn(columns) if has_bias else None
    packed = pack(weight)
    for num_rows in (1, 2, 7, 8, 9, 16, 33):
        x = torch.randn(num_rows, size)
        wanted = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
        out = native.matmul(x, packed, bias, columns)
        torch.testing.assert_close(out.double(), wanted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("size", "columns"), SHAPES)
def test_8_bit_products_are_those_of_the_weights_they_stand_for(native, size, columns):
    weight, scale = torch.randint(-127, 128, (columns, size), dtype=torch.int8), torch.rand(columns) + 0.1
    packed = pack(weight)
    for num_rows in (1, 5, 8, 9, 40):
        x = torch.randn(num_rows, size)
        wanted = x.double() @ (weight.double() * scale.double()[:, None]).T
        out = native.matmul_int8(x, packed, scale, None, columns)
        torch.testing.assert_close(out.double(), wanted, atol=2e-2, rtol=1e-4)


@pytest.mark.parametrize(("size", "columns"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_4_bit_products_are_those_of_the_weights_they_stand_for(native, size, columns, has_bias):
    nibbles, bias = rounded_to_nibbles(torch.randn(columns, size)), torch.randn(columns) if has_bias else None
    packed = pack_nibbles(*nibbles)
    for num_rows in (1, 2, 3, 4, 5, 8, 9, 40):
        x = torch.randn(num_rows, size)
        wanted = torch.nn.functional.linear(
            x.double(), nibbles.weights(size).double(), None if bias is None else bias.double()
        )
        out = native.matmul_int4(x, packed, bias, columns)
        torch.testing.assert_close(out.double(), wanted, atol=2e-4, rtol=1e-4)


def test_every_place_of_a_word_holds_its_own_input(native):
    """One input at a time gives back one column of the weights, the highest nibble of a word (its sign) too."""
    values = torch.randint(0, 16, (50, 2, 32), dtype=torch.uint8)
    scale, minimum = torch.ones(50, 2).bfloat16(), torch.full((50, 2), -8.0).bfloat16()
    out = native.matmul_int4(torch.eye(64), pack_nibbles(values, scale, minimum), None, 50)
    assert torch.equal(out, (values.float() - 8).view(50, 64).T)


def test_a_row_has_the_same_bits_in_any_company(native, num_threads):
    weight, x = torch.randn(200, 96), torch.randn(37, 96)
    scale, packed8 = torch.rand(200), pack(torch.randint(-127, 128, (200, 96), dtype=torch.int8))
    packed, packed4 = pack(weight), pack_nibbles(*rounded_to_nibbles(weight))
    alone = torch.cat([native.matmul(row[None], packed, None, 200) for row in x])
    alone4 = torch.cat([native.matmul_int4(row[None], packed4, None, 200) for row in x])
    alone8 = torch.cat([native.matmul_int8(row[None], packed8, scale, None, 200) for row in x])
    for count in (2, 3, 8, 13, 37):
        assert torch.equal(native.matmul(x[:count], packed, None, 200), alone[:count])
        assert torch.equal(native.matmul_int8(x[:count], packed8, scale, None, 200), alone8[:count])
        assert torch.equal(native.matmul_int4(x[:count], packed4, None, 200), alone4[:count])


@pytest.mark.parametrize("bits", [32, 8, 4])
def test_layers_packed_beside_one_another_have_their_own_results(native, bits):
    weights = [torch.randn(columns, 40) for columns in (50, 20, 96)]
    x = torch.randn(5, 40)
    for layer, weight in zip(packed_beside(native, weights, [None] * 3, bits=bits), weights, strict=True):
        [alone] = packed_beside(native, [weight], [None], bits=bits)
        assert torch.equal(layer(x), alone(x)) and layer.weight_bits == bits


def test_layers_packed_beside_one_another_are_one_product(native):
    weights = [torch.randn(columns, 32) for columns in (50, 20, 96)]
    biases = [torch.randn(50), None, torch.randn(96)]
    layers = packed_beside(native, weights, biases)
    x = torch.randn(2, 3, 32)
    for layer, weight, bias in zip(layers, weights, biases, strict=True):
        torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, weight, bias), atol=1e-4, rtol=1e-4)
    padded = [96, 48, 96]
    together = native.matmul(x[0], torch.cat([layer.packed for layer in layers]), None, sum(padded))
    assert layers[1].packed.data_ptr() == layers[0].packed.data_ptr() + 2 * 32 * 48 * 4
    torch.testing.assert_close(together[:, 96:116] + 0, x[0] @ weights[1].T, atol=1e-4, rtol=1e-4)


def test_units_are_runs_of_at_most_eight_rows_of_a_sequence(make_world, seq):
    world = make_world()
    seqs = [seq.chain(3, 1), seq.chain(0, 19), seq.chain(5, 8)]
    rows = native_rows(world.batch(seqs, world.tables(seqs)))
    assert rows.arrays[0].tolist() == [[0, 1], [1, 8], [9, 8], [17, 3], [20, 8]]
    assert rows.struct.num_units == 5 and rows.struct.count == 28


def test_nan_of_a_key_reaches_those_that_see_it_and_no_other(native, make_world, seq):
    world = make_world()
    seqs = [seq.chain(9, 4)]
    tables = world.tables(seqs)
    batch = world.batch(seqs, tables)
    world.k[tables[0][11 // world.k.shape[1]], 11 % world.k.shape[1]] = torch.nan
    out = NativeAttention(native, None)(world.queries(4), world.k, world.v, batch, world.scale)
    assert out[:2].isfinite().all() and out[2:].isnan().all()


def test_nan_beside_scores_of_minus_infinity_stays_nan(native, make_world, seq):
    """Finite scores in the next tile do not hide it."""
    world = make_world(block_size=32)
    seqs = [seq.chain(40, 1)]
    tables = world.tables(seqs)
    batch = world.batch(seqs, tables)
    world.k[tables[0][0]] = -1e38
    world.k[tables[0][0], 2] = torch.nan
    out = NativeAttention(native, None)((world.queries(1).abs() + 1) * 1e3, world.k, world.v, batch, world.scale)
    assert out.isnan().all()


def test_a_long_context_is_the_same_alone_and_in_company(native, make_world, seq, num_threads):
    """Alone, its keys are shared among the threads, in several turns."""
    world, long = make_world(), seq.chain(2100, 2)
    seqs = [long, *(seq.chain(9, 1) for _ in range(12))]
    tables = world.tables(seqs)
    q = world.queries(14)
    attend = NativeAttention(native, None)
    together = attend(q, world.k, world.v, world.batch(seqs, tables), world.scale)
    alone = attend(q[:2], world.k, world.v, world.batch([long], tables[:1]), world.scale)
    assert torch.equal(alone, together[:2])
    torch.testing.assert_close(alone.double(), world.expected(q[:2], [long], tables[:1]), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("key", [5, 130, 290])
def test_nan_of_any_chunk_of_keys_stays_nan(native, make_world, seq, key, num_threads):
    """And a first chunk without a finite score hides nothing of the others."""
    world = make_world(block_size=32)
    seqs = [seq.chain(300, 4)]
    tables = world.tables(seqs)
    q, batch = world.queries(4), world.batch(seqs, tables)
    world.k[tables[0][:4]] = 0.0
    world.k[tables[0][:4], :, :, 0] = -torch.inf
    q[:, :, 0] = 1.0
    out = NativeAttention(native, None)(q, world.k, world.v, batch, world.scale)
    torch.testing.assert_close(out.double(), world.expected(q, seqs, tables), atol=2e-5, rtol=2e-5)
    world.v[tables[0][key // 32], key % 32] = torch.nan
    world.k[tables[0][key // 32], key % 32] = torch.nan
    assert NativeAttention(native, None)(q, world.k, world.v, batch, world.scale).isnan().all()


@pytest.mark.parametrize("size", HEAD_SIZES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (4, 2), (7, 1)])
def test_every_head_size_and_group_equals_the_definition(native, make_world, mixed, size, heads, kv_heads):
    world, seqs = make_world(heads=heads, kv_heads=kv_heads, key_size=size, value_size=size), mixed()
    tables = world.tables(seqs)
    batch = world.batch(seqs, tables)
    q = world.queries(batch.num_rows)
    out = NativeAttention(native, None)(q, world.k, world.v, batch, world.scale)
    torch.testing.assert_close(out.double(), world.expected(q, seqs, tables), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("window", [None, 5])
def test_a_last_row_may_be_shorter_than_those_before_it(native, make_world, seq, window):
    """Rows of a tree reach into a tile of 32 keys that its last row does not, and differ within the one before."""
    world = make_world(block_size=4)
    seqs = [seq.tree(29, [-1, 0, 1, 2, 3, -1, 5]), seq.tree(0, [-1, 0, -1])]
    tables = world.tables(seqs)
    batch = world.batch(seqs, tables)
    q = world.queries(batch.num_rows)
    out = NativeAttention(native, None)(q, world.k, world.v, batch, world.scale, window)
    torch.testing.assert_close(out.double(), world.expected(q, seqs, tables, window), atol=2e-5, rtol=2e-5)


# -- building --------------------------------------------------------------------------------------------------------


def test_a_library_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native) -> None:
    calls = []
    monkeypatch.setattr(build, "_build", lambda compiler, target: (calls.append(compiler), target.mkdir(parents=True)))
    first, second = built_library(tmp_path), built_library(tmp_path)
    assert first == second and len(calls) == 1
    monkeypatch.setattr(build, "_cpu", lambda: "another machine")
    assert built_library(tmp_path) != first


def test_without_a_compiler_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(NativeBuildError, match=r"PACELINE-E321: no C\+\+ compiler was found \(.*\); install g\+\+ or"):
        built_library(tmp_path)


def test_a_compiler_that_fails_is_named_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "fatal error: no vectors" >&2\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(
        NativeBuildError, match="broken cannot build the kernels: fatal error: no vectors; name another"
    ):
        built_library(tmp_path)
    assert not list((tmp_path / "native").glob("*"))


def test_without_the_kernels_a_warning_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.delenv("PACELINE_NATIVE", raising=False)
    with pytest.warns(NativeKernelWarning, match=r"run several times slower: PACELINE-E321: no C\+\+ compiler"):
        assert native_library.__wrapped__() is None


def test_they_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert native_library.__wrapped__() is None


@pytest.mark.parametrize("fault", ["wrong", "company"])
def test_a_build_that_computes_wrongly_is_not_used(native, fault: str) -> None:
    class Faulty:
        def matmul(self, x, packed, bias, columns):
            out = native.matmul(x, packed, bias, columns)
            return out + 1e-2 if fault == "wrong" else out + np.float32(len(x) > 1) * 1e-6 * out

    with pytest.raises(NativeBuildError, match="fail their self-test on this machine"):
        library._check(Faulty())


def test_scores_of_minus_infinity_weigh_nothing(native, make_world, seq) -> None:
    """A whole tile of 32 such keys comes first; what follows is as if they were not there."""
    world = make_world()
    seqs = [seq.chain(35, 1)]
    tables = world.tables(seqs)
    batch = world.batch(seqs, tables)
    q = world.queries(1).abs() + 1
    block_size = world.k.shape[1]
    for position in range(32):
        world.k[tables[0][position // block_size], position % block_size] = -1e38
    out = NativeAttention(native, None)(q * 1e3, world.k, world.v, batch, world.scale)
    wanted = paged_attention(q * 1e3, world.k, world.v, batch, world.scale)
    assert out.isfinite().all()
    torch.testing.assert_close(out, wanted, atol=1e-4, rtol=1e-4)


def test_cxx_may_have_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native) -> None:
    commands = []
    monkeypatch.setattr(build, "_run", lambda command: commands.append(command) or "")
    monkeypatch.setattr(build, "_build", lambda compiler, target: commands.append(compiler))
    monkeypatch.setenv("CXX", "sh -x -y")
    built_library(tmp_path)
    assert [command[1:] for command in commands] == [["-x", "-y", "--version"], ["-x", "-y"]]
