"""Fakes of what the core hands a proposer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from paceline.api import ProposeBatch, RequestView, SamplingFacts, TargetFacts


def request_view(request_id: str, tokens: Sequence[int]) -> RequestView:
    array = np.asarray(tokens, dtype=np.int64)
    array.flags.writeable = False
    return RequestView(
        request_id=request_id,
        tokens=array,
        num_prompt_tokens=1,
        sampling=SamplingFacts(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0),
        trust_domain="",
    )


def never(*arguments: Any) -> Any:
    raise AssertionError("prompt lookup uses neither noise nor scores")


@pytest.fixture
def make_batch() -> Callable[..., ProposeBatch]:
    """``({request id: tokens}, budgets) -> ProposeBatch``."""

    def make(texts: Mapping[str, Sequence[int]], budgets: Sequence[int]) -> ProposeBatch:
        return ProposeBatch(
            requests=tuple(request_view(name, tokens) for name, tokens in texts.items()),
            budgets=np.asarray(budgets, dtype=np.int64),
            last_tokens=np.array([tokens[-1] for tokens in texts.values()], dtype=np.int64),
            positions=np.array([len(tokens) - 1 for tokens in texts.values()], dtype=np.int64),
            kv={},
            noise=never,
            choose=never,
        )

    return make


@pytest.fixture
def target() -> TargetFacts:
    return TargetFacts(
        config={},
        vocab_size=512,
        hidden_size=64,
        num_layers=2,
        max_model_len=128,
        max_num_seqs=8,
        block_size=16,
        dtype="float32",
        device="cpu",
        numerics="exact",
        tokenizer_fingerprint="",
        weights_fingerprint="00",
    )
