from __future__ import annotations

import pytest

from paceline.ops import select
from paceline.ops.attention import paged_attention
from paceline.ops.exact import NumericsError
from paceline.ops.exact_attention import ExactAttention
from paceline.ops.native_attention import NativeAttention
from paceline.ops.select import select_ops


def test_bodies_follow_the_numerics():
    assert select_ops("fast", "cuda").attention is paged_attention


@pytest.mark.parametrize(("numerics", "otherwise"), [("fast", type(paged_attention)), ("exact", ExactAttention)])
def test_the_native_kernel_serves_the_cpu_where_it_is(numerics, otherwise, monkeypatch):
    monkeypatch.setattr(select, "native_library", lambda: None)
    assert isinstance(select_ops(numerics, "cpu").attention, otherwise)
    monkeypatch.setattr(select, "native_library", lambda: object())
    assert isinstance(select_ops(numerics, "cpu").attention, NativeAttention)


def test_exact_is_refused_off_the_cpu():
    with pytest.raises(NumericsError, match=r'PACELINE-E320.*device "cuda".*use device="cpu" or numerics="fast"'):
        select_ops("exact", "cuda:0")
