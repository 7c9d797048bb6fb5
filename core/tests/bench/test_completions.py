"""What the events of a streamed completion add up to."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.bench.completions import Completion, error_message, event_of


def choice(text: str | None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": None} | fields]}


def test_ids_text_usage_and_times() -> None:
    """The first event has two tokens; one without output has no time; the last has usage and no choice."""
    completion = Completion()
    events = [
        choice("ab", token_ids=[1, 2]),
        choice("", token_ids=[]),
        choice("c", token_ids=[3]),
        choice("", token_ids=[4], finish_reason="stop"),
        {"choices": [], "usage": {"completion_tokens": 4}},
    ]
    for time_s, event in enumerate(events):
        completion.put(event, float(time_s))
    assert completion == Completion("abc", [1, 2, 3, 4], 4, "stop", [0.0, 2.0, 3.0], num_first_tokens=2)


def test_text_alone() -> None:
    completion = Completion()
    for time_s, event in enumerate([choice("a"), choice(None), choice("b", finish_reason="length")]):
        completion.put(event, float(time_s))
    assert completion == Completion("ab", [], None, "length", [0.0, 2.0], num_first_tokens=1)


def test_an_empty_answer_is_timed_by_its_end() -> None:
    completion = Completion()
    completion.put(choice(""), 1.0)
    completion.put(choice("", finish_reason="stop"), 2.0)
    assert completion.times_s == [2.0]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"error": {"message": "out of memory", "code": 500}}, "it holds an error: out of memory"),
        ({"choices": [{"delta": {"content": "a"}}]}, "it holds what is no part of a completion: {"),
        ({"hello": 1}, 'it holds what is no part of a completion: {"hello": 1}'),
        ({"choices": [], "usage": {}} | {"usage": {"total": 1}}, "no part of a completion"),
        ({"choices": [3]}, "no part of a completion"),
    ],
)
def test_what_is_no_completion_is_refused(event: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:
        Completion().put(event, 0.0)
    assert message in str(refused.value)


def test_events() -> None:
    assert event_of('{"choices": []}') == {"choices": []}
    assert event_of(" [DONE]") is None
    for data in ("nonsense", "[1]", ""):
        with pytest.raises(ValueError, match="it holds what is no JSON object"):
            event_of(data)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "no such model", "type": "NotFoundError"}}, "no such model"),
        ({"error": "busy"}, "busy"),
        ({"object": "error", "message": "too long"}, "too long"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [{"loc": ["body"]}]}, '[{"loc": ["body"]}]'),
        ("<html>\n  Bad Gateway", "<html> Bad Gateway"),
        ("x" * 300, "x" * 200 + "..."),
    ],
)
def test_a_server_s_message(body: Any, message: str) -> None:
    assert error_message(body) == message
