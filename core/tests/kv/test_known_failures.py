"""Failures that other engines met, at the level of the manager."""

from __future__ import annotations

import random

import numpy as np
import pytest

from paceline.api import IdentityContributor
from paceline.kv.invariants import check


class Adapter(IdentityContributor):
    """An adapter by name and load count, as a plugin would put it into the identity."""

    def __init__(self):
        self.loads = {"A": 1, "B": 1}

    def request_fields(self, request):
        name = request.metadata.get("adapter")
        return {} if name is None else {"name": name, "load": self.loads[name]}


def test_identities_never_share_and_a_reload_is_a_new_identity(make_manager, facts, run):
    adapter = Adapter()
    manager = make_manager(contributors=[("adapter", adapter)], num_blocks=60, max_blocks_per_seq=12)
    tokens = np.arange(40)

    def cached(name):
        return run(manager, facts("r", metadata={"adapter": name} if name else {}), tokens)

    assert [cached(name) for name in ("A", "B", None)] == [0, 0, 0]
    assert [cached(name) for name in ("A", "B", None)] == [39, 39, 39]
    adapter.loads["A"] += 1
    assert [cached(name) for name in ("A", "A", "B", None)] == [0, 39, 39, 39]


def test_salts_and_trust_domains_are_apart(make_manager, facts, run):
    manager = make_manager(num_blocks=60)
    kinds = [{}, {"cache_salt": "a"}, {"trust_domain": "a"}, {"cache_salt": "b"}]
    assert [run(manager, facts(**kind), np.arange(17)) for kind in kinds] == [0, 0, 0, 0]
    assert [run(manager, facts(**kind), np.arange(17)) for kind in kinds] == [16, 16, 16, 16]


@pytest.mark.parametrize("length", range(1, 26))
def test_a_prompt_wholly_in_cache_leaves_a_token_to_compute(make_manager, facts, run, length):
    manager = make_manager(num_blocks=40)
    tokens = np.arange(26)
    hits = [run(manager, facts(f"r{i}"), tokens[:length]) for i in range(3)]
    full = length // 4 * 4
    expected = length - 1 if full == length else full
    assert hits == [0, expected, expected]
    assert 4 * ((length - 1) // 4) <= hits[1] <= length - 1
    together = [manager.admit(facts(f"t{i}"), tokens[:length]) for i in range(3)]
    assert [hit.num_tokens for hit in together] == [expected] * 3
    assert all(hit.num_kv_tokens == full for hit in together)
    for i in range(3):
        assert manager.reserve(f"t{i}", length)
        manager.commit(f"t{i}", tokens[:length], length)
        check(manager)
    for i in range(3):
        manager.release(f"t{i}")
    assert run(manager, facts("longer"), tokens[: length + 1]) == full
    assert manager.num_used == 0


def test_a_recycled_block_has_lost_its_key(make_manager, facts):
    manager = make_manager(num_blocks=12, collect_events=True)
    p, rng = np.arange(32), random.Random(0)
    kept = np.zeros((12, 4), dtype=np.int64)
    for round_index in range(10):
        q = np.arange(44) + 1000 * (round_index + 1)
        pair = [("p", p), ("q", q)]
        rng.shuffle(pair)
        for name, tokens in pair:
            hit = manager.admit(facts(name), tokens)
            table = manager.block_tables[hit.row, : hit.num_blocks]
            np.testing.assert_array_equal(kept[table].ravel(), tokens[: hit.num_kv_tokens])
            assert manager.reserve(name, len(tokens))
            row = manager.block_tables[hit.row]
            start = hit.num_kv_tokens
            positions = np.arange(start, len(tokens))
            kept[row[positions // 4], positions % 4] = tokens[start:]
            manager.commit(name, tokens, len(tokens))
            check(manager)
            manager.release(name)
            check(manager)
            assert len(manager.cache.index) <= 12
            if name == "q":
                hit = manager.lookup(facts("again"), p)
                assert hit.num_kv_tokens <= 4, "11 of 12 blocks were overwritten"
