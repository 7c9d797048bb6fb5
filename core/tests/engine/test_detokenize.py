from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.detokenize import Detokenizer, StopMatcher

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # one glyph of five code points, three of them four bytes
TEXTS = ["plain", "\U0001f44d\U0001f3fd!", f"a{FAMILY}b", "\u4f60\u597d", "e\u0301", "\u05e9\u05dc\u05d5\u05dd"]


def decode(token_ids: Sequence[int]) -> str:
    """Tokens are bytes."""
    return bytes(token_ids).decode("utf-8", "replace")


def pieces(token_ids: Sequence[int]) -> list[str]:
    stream = Detokenizer(decode)
    return [stream.append(token) for token in token_ids] + [stream.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_whole_characters_and_join_to_the_text(text: str) -> None:
    parts = pieces(text.encode())
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts)


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_is_given_with_its_last_byte(text: str) -> None:
    ends = [len(text[: at + 1].encode()) - 1 for at in range(len(text))]
    parts = pieces(text.encode())
    assert [parts[end] for end in ends] == list(text)


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_a_cut_character_is_one_replacement_at_the_end_only(num_bytes: int) -> None:
    parts = pieces("ok\U0001f44d".encode()[: 2 + num_bytes])
    assert parts[:-1] == ["o", "k"] + [""] * num_bytes
    assert parts[-1] == "\ufffd"


def test_invalid_bytes_do_not_stall() -> None:
    parts = pieces([0xFF] * 20)
    given = np.cumsum([len(part) for part in parts[:-1]])
    assert (np.arange(1, 21) - given).max() == 4
    assert "".join(parts) == "\ufffd" * 20


@given(st.lists(st.integers(0, 255), max_size=40))
def test_any_bytes_join_to_the_whole_decode(token_ids: list[int]) -> None:
    assert "".join(pieces(token_ids)) == decode(token_ids)


@given(st.text(max_size=30))
def test_any_text_joins_to_itself(text: str) -> None:
    assert "".join(pieces(text.encode("utf-8", "replace"))) == text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize(
    ("stops", "text", "num_new", "found"),
    [
        (["STOP"], "hello STOP world", 16, (6, "STOP")),
        (["STOP"], "hello ST", 2, None),
        (["STOP"], "hello STOP", 2, (6, "STOP")),
        (["STOP"], "STOP hello", 2, None),  # found when it was new
        ([" ST", "STOP"], "hello STOP", 10, (5, " ST")),
        (["o S", "o"], "hello STOP", 10, (4, "o S")),
        ([], "hello", 5, None),
    ],
)
def test_find(stops: list[str], text: str, num_new: int, found: tuple[int, str] | None) -> None:
    assert StopMatcher(stops).find(text, num_new) == found


@pytest.mark.parametrize(
    ("stops", "text", "num_held"),
    [(["STOP"], "hello ST", 2), (["STOP"], "hello", 0), (["STOP", "lo STOP"], "hello ST", 5), (["aab"], "aaa", 2)],
)
def test_only_what_may_become_a_stop_is_held(stops: list[str], text: str, num_held: int) -> None:
    assert StopMatcher(stops).num_held(text) == num_held
