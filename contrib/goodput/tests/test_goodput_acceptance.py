"""Rates: by kind of draft, by request, and what they fall back to."""

from __future__ import annotations

import numpy as np
import pytest

from paceline_goodput.acceptance import FIRST_CHANCE, Acceptance, kinds_of_lengths, longest_of_kinds
from paceline_goodput.requests import RequestTable

WIDTH = 5
FULL = 4


@pytest.fixture
def table() -> RequestTable:
    return RequestTable(FULL + 1)


@pytest.fixture
def acceptance(table: RequestTable) -> Acceptance:
    return Acceptance(WIDTH, table)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def verify(subject: Acceptance, row: int, kind: int, length: int, accepted: int, times: int = 40) -> None:
    for _ in range(times):
        subject.verified(ints(row), ints(kind), ints(length), ints(accepted))
        subject.fade()
    subject.refresh()


def test_kinds() -> None:
    assert kinds_of_lengths(10) == [0, 1, 2, 3, 3, 4, 4, 4, 4, 5]
    for max_tokens in range(1, 40):
        kinds, longest = kinds_of_lengths(max_tokens), longest_of_kinds(max_tokens).tolist()
        assert len(longest) == kinds[-1] + 2 and longest[-1] == max_tokens
        assert all(kinds[length] == kind for kind, length in enumerate(longest[:-1]))


def test_as_long_as_was_asked_for_is_a_kind_whatever_the_length(acceptance: Acceptance) -> None:
    assert acceptance.kinds(ints(0, 1, 2, 4, 5, 2), ints(5, 5, 5, 5, 5, 2)).tolist() == [0, 1, 2, 3, FULL, FULL]


def test_at_first_every_token_has_the_same_chance(acceptance: Acceptance, table: RequestTable) -> None:
    rows = table.rows(["a"])
    powers = FIRST_CHANCE ** np.arange(1, WIDTH + 1)
    assert acceptance.chances(rows, ints(FULL))[0] == pytest.approx(powers)
    assert acceptance.chances_of_every_kind(rows)[0] == pytest.approx(np.tile(powers, (FULL, 1)))


def test_kinds_are_told_apart(acceptance: Acceptance, table: RequestTable) -> None:
    row = int(table.rows(["a"])[0])
    for _ in range(100):
        verify(acceptance, row, 1, 1, 0, times=1)
        verify(acceptance, row, FULL, 5, 5, times=1)
    fresh = table.rows(["b"])
    assert acceptance.chances(fresh, ints(1))[0, 0] < 0.15
    assert acceptance.chances(fresh, ints(FULL))[0, 4] > 0.6


def test_tokens_after_a_wrong_one_tell_nothing(acceptance: Acceptance, table: RequestTable) -> None:
    verify(acceptance, int(table.rows(["a"])[0]), FULL, 5, 1)
    chances = acceptance.chances(table.rows(["b"]), ints(FULL))[0]
    following = chances[1:] / chances[:-1]
    assert chances[0] > 0.9 and following[0] < 0.15
    assert following[1:] == pytest.approx(FIRST_CHANCE, abs=0.01)


def test_a_kind_that_was_not_seen_goes_by_the_others(acceptance: Acceptance, table: RequestTable) -> None:
    verify(acceptance, int(table.rows(["a"])[0]), FULL, 5, 0)
    assert acceptance.chances(table.rows(["b"]), ints(2))[0, 0] < 0.15


def test_a_requests_own_history_beats_that_of_all(acceptance: Acceptance, table: RequestTable) -> None:
    good, bad = table.rows(["good", "bad"]).tolist()
    for _ in range(40):
        acceptance.verified(ints(good, bad), ints(FULL, FULL), ints(5, 5), ints(5, 0))
        acceptance.fade()
    acceptance.refresh()
    fresh = int(table.rows(["fresh"])[0])
    first = acceptance.chances(ints(good, bad, fresh), ints(FULL, FULL, FULL))[:, 0]
    assert first[0] > 0.8 and first[1] < 0.2 and 0.4 < first[2] < 0.6


def test_a_bad_stretch_fades(acceptance: Acceptance, table: RequestTable) -> None:
    row = table.rows(["a"])
    others = int(table.rows(["b"])[0])
    verify(acceptance, int(row[0]), FULL, 5, 0, times=10)
    before = acceptance.chances(row, ints(FULL))[0, 0]
    verify(acceptance, others, FULL, 5, 5, times=100)
    assert before < 0.3 and acceptance.chances(row, ints(FULL))[0, 0] > 0.85
    assert abs(table.own[row[0]]) < 0.2


def test_shares_go_from_those_of_all_to_the_requests_own(acceptance: Acceptance, table: RequestTable) -> None:
    often, never = table.rows(["often", "never"]).tolist()
    assert acceptance.shares(ints(often))[0].tolist() == [0, 0, 0, 0, 1]
    for _ in range(30):
        acceptance.delivered(ints(often, never), ints(FULL, 0))
        acceptance.fade()
    shares = acceptance.shares(ints(often, never, int(table.rows(["fresh"])[0])))
    assert shares.sum(axis=1) == pytest.approx(1.0)
    assert shares[0, FULL] > 0.85 and shares[1, 0] > 0.85 and 0.4 < shares[2, 0] < 0.6


def test_released_rows_start_anew(table: RequestTable) -> None:
    rows = table.rows([f"r{number}" for number in range(20)])
    assert sorted(rows.tolist()) == list(range(20)) or len(set(rows.tolist())) == 20
    table.own[rows] = 1.0
    table.tried[rows] = 9
    table.release(["r3", "unknown", "r3"])
    fresh = table.rows(["fresh", "r4"])
    assert fresh[0] not in table.rows(["r4", "r5"])
    assert table.own[fresh].tolist() == [0.0, 1.0] and table.tried[fresh].tolist() == [0, 9]
