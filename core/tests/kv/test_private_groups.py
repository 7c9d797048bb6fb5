"""Private draft groups: own blocks that nobody shares, no hit brings and no block of the target answers for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from paceline.kv.errors import DraftRangeError, KVGroupError
from paceline.kv.invariants import check
from paceline.kv.manager import KVManager
from paceline.kv.storage import KVStorage

TOKENS = np.arange(12)


@pytest.fixture
def manager(make_manager: Callable[..., KVManager], group: Callable[..., Any]) -> KVManager:
    return make_manager(groups=[group("own", private=True), group("shared")], num_blocks=8)


def admit(manager: KVManager, request: Any, tokens: np.ndarray = TOKENS) -> Any:
    hit = manager.admit(request, tokens)
    assert manager.reserve(request.request_id, len(tokens))
    manager.take_copies()
    manager.commit(request.request_id, tokens, len(tokens))
    return hit


def reserve(manager: KVManager, *wanted: tuple[str, int]) -> list[int]:
    names = [name for name, _ in wanted]
    manager.reserve_private("own", names, np.array([slots for _, slots in wanted]))
    check(manager)
    return manager.draft_capacity("own", names).tolist()


def report(manager: KVManager, name: str, first: int, computed: int) -> None:
    manager.report("own", [name], np.array([first]), np.array([computed]))
    check(manager)


def computed(manager: KVManager, name: str) -> int:
    first, stop = manager.draft_range("own", [name])
    assert first.tolist() == [0]
    return int(stop[0])


def test_a_request_with_a_hit_starts_with_nothing_of_its_own(manager: KVManager, facts: Any) -> None:
    admit(manager, facts("a"))
    assert reserve(manager, ("a", 9)) == [12]
    report(manager, "a", 0, 9)
    hit = admit(manager, facts("b"), np.arange(11))
    assert hit.num_tokens == 10 and hit.components == {"shared": 0}
    assert computed(manager, "b") == 0
    assert reserve(manager, ("b", 8)) == [8]
    tables = manager.components.tables("own").array[[manager.row("a"), manager.row("b")]]
    assert not set(tables[0, :3]) & set(tables[1, :2])


def test_what_rejects_drafts_and_rewinds_leaves_private_ranges_alone(manager: KVManager, facts: Any) -> None:
    admit(manager, facts("a"))
    reserve(manager, ("a", 16))
    report(manager, "a", 0, 15)
    manager.clamp_drafts("a", 5)
    manager.rewind("a", 12)
    assert computed(manager, "a") == 15
    report(manager, "a", 0, 3)
    report(manager, "a", 0, 7)
    assert computed(manager, "a") == 7


def test_slots_are_given_as_far_as_they_last_and_come_back(manager: KVManager, facts: Any) -> None:
    admit(manager, facts("a"))
    admit(manager, facts("b"))
    assert reserve(manager, ("a", 20), ("b", 13)) == [20, 0]
    assert reserve(manager, ("a", 1), ("b", 12)) == [20, 12]
    report(manager, "b", 0, 12)
    row = manager.row("b")
    manager.release("b")
    check(manager)
    assert not manager.components.tables("own").array[row].any()
    admit(manager, facts("c"))
    assert manager.row("c") == row
    assert computed(manager, "c") == 0
    assert reserve(manager, ("c", 4)) == [4]


def test_a_private_table_is_as_long_as_the_targets(make_manager: Any, group: Any, facts: Any) -> None:
    manager = make_manager(groups=[group("own", private=True)], max_blocks_per_seq=4)
    admit(manager, facts("a"))
    assert reserve(manager, ("a", 17)) == [0]
    assert reserve(manager, ("a", 16)) == [16]


def test_a_range_beyond_the_slots_is_refused(manager: KVManager, facts: Any) -> None:
    admit(manager, facts("a"))
    reserve(manager, ("a", 4))
    with pytest.raises(DraftRangeError, match=r'"own": request "a" was reported as \[0, 5\), beyond its 4 reserved'):
        report(manager, "a", 0, 5)


def test_names_of_private_groups_are_names(make_manager: Any, manager: KVManager, group: Any) -> None:
    with pytest.raises(KVGroupError, match=r'the name "own" of a draft KV group is taken'):
        make_manager(groups=[group("own", private=True), group("own")])
    with pytest.raises(KVGroupError, match=r'no draft KV group "owm"; did you mean "own"'):
        manager.draft_range("owm", [])


def test_copies_between_the_targets_blocks_pass_private_layers_by(group: Any) -> None:
    storage = KVStorage([group("target"), group("own", private=True), group("shared")], 4, 4, torch.device("cpu"))
    pointers = {keys.data_ptr() for keys, _ in storage.shared_layers}
    assert len(storage.shared_layers) == 4
    assert not pointers & {keys.data_ptr() for keys, _ in storage.layers("own")}
