from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.sampling.rows import RowParams

DEFAULTS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seeds": 7, "positions": 3}


def _build(rows, banned=()):
    columns = {name: np.array([row.get(name, default) for row in rows]) for name, default in DEFAULTS.items()}
    return RowParams.build(**columns, banned=banned)


@pytest.fixture
def build_rows():
    """``build_rows([{"temperature": 0.7, ...}, ...])``: one dict of deviations from the defaults per row."""
    return _build


@pytest.fixture
def same_bits():
    """Whether two tensors are equal bit for bit (NaN and the sign of 0 included)."""

    def check(left: torch.Tensor, right: torch.Tensor) -> bool:
        as_int = {4: torch.int32, 8: torch.int64}[left.element_size()]
        return torch.equal(left.contiguous().view(as_int), right.contiguous().view(as_int))

    return check


@pytest.fixture(autouse=True)
def _fixed_randomness():
    torch.manual_seed(20)
