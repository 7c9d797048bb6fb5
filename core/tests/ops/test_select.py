from __future__ import annotations

import pytest

from paceline.ops.attention import paged_attention
from paceline.ops.exact import NumericsError
from paceline.ops.exact_attention import ExactAttention
from paceline.ops.select import select_ops


def test_bodies_follow_the_numerics():
    assert select_ops("fast", "cuda").attention is paged_attention
    assert isinstance(select_ops("exact", "cpu").attention, ExactAttention)


def test_exact_is_refused_off_the_cpu():
    with pytest.raises(NumericsError, match=r'PACELINE-E320.*device "cuda".*use device="cpu" or numerics="fast"'):
        select_ops("exact", "cuda:0")
