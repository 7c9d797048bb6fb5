from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.api import IdentityContributor, KVGroup, RequestFacts
from paceline.kv.identity import CoreIdentity, IdentityBuilder
from paceline.kv.invariants import check
from paceline.kv.lru import LRUPolicy
from paceline.kv.manager import KVManager

CORE = {
    "weights_fingerprint": "aa",
    "tokenizer_fingerprint": "bb",
    "rope": "theta=10000",
    "attention": "full",
    "kv_dtype": "float32",
    "kv_layout": "block-token-head",
    "block_size": 4,
    "numerics": "exact",
    "numerics_facts": "rows=2..16",
}


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.fixture
def core_fields() -> dict[str, Any]:
    return dict(CORE)


@pytest.fixture
def facts() -> Callable[..., RequestFacts]:
    def make(request_id: str = "r", **fields: Any) -> RequestFacts:
        return RequestFacts(request_id=request_id, num_prompt_tokens=1, **fields)

    return make


@pytest.fixture
def group() -> Callable[..., KVGroup]:
    def make(name: str = "draft", **fields: Any) -> KVGroup:
        sizes = {"num_layers": 2, "num_kv_heads": 1, "key_size": 8, "value_size": 4, "dtype": "float32"}
        return KVGroup(name=name, **{"fingerprint": "cc", **sizes, **fields})

    return make


@pytest.fixture
def make_manager() -> Callable[..., KVManager]:
    def make(contributors: list[tuple[str, IdentityContributor]] | None = None, **changes: Any) -> KVManager:
        block_size = changes.get("block_size", 4)
        settings: dict[str, Any] = {
            "num_blocks": 12,
            "block_size": block_size,
            "groups": [],
            "policy": LRUPolicy(),
            "identity": IdentityBuilder(CoreIdentity(**{**CORE, "block_size": block_size}), contributors or []),
            "clock": FakeClock(),
            "enable_prefix_caching": True,
            "max_seqs": 4,
            "max_blocks_per_seq": 12,
        }
        return KVManager(**{**settings, **changes})

    return make


@pytest.fixture
def run() -> Callable[..., int]:
    """Admit, compute all tokens and release; the number of cached tokens comes back."""

    def run_request(manager: KVManager, request: RequestFacts, tokens: np.ndarray) -> int:
        hit = manager.admit(request, tokens)
        assert manager.reserve(request.request_id, len(tokens))
        manager.take_copies()
        manager.commit(request.request_id, tokens, len(tokens))
        check(manager)
        manager.release(request.request_id)
        check(manager)
        return hit.num_tokens

    return run_request
