"""What is compared beside the plain engines, as options say it."""

from __future__ import annotations

import pytest

from paceline.bench.rival_choices import BaselineMode, RivalChoice, ServerChoice, parse_servers, rival_choice

GENERATE, LOOKUP, BATCHING = BaselineMode


def test_all_run_by_default_and_what_cannot_is_left_out() -> None:
    assert rival_choice([], 5, []) == RivalChoice(5, continuous_batching=True, must_batch=False, servers=[])
    assert rival_choice([], 0, []) == RivalChoice(0, continuous_batching=True, must_batch=False, servers=[])


def test_named_modes_are_the_only_ones_and_must_run() -> None:
    assert rival_choice([GENERATE], 5, []) == RivalChoice(0, continuous_batching=False, must_batch=False, servers=[])
    assert rival_choice([LOOKUP], 5, []) == RivalChoice(5, continuous_batching=False, must_batch=False, servers=[])
    assert rival_choice([BATCHING], 5, []) == RivalChoice(0, continuous_batching=True, must_batch=True, servers=[])
    assert rival_choice([BATCHING, LOOKUP], 3, []) == RivalChoice(
        3, continuous_batching=True, must_batch=True, servers=[]
    )


def test_prompt_lookup_that_drafts_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="drafts nothing with --lookup-tokens 0; give a number from 1"):
        rival_choice([LOOKUP], 0, [])


@pytest.mark.parametrize(
    ("text", "url", "model"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1", None),
        ("http://localhost:8000/", "http://localhost:8000/v1", None),
        (" https://api.example.com/v1/ ", "https://api.example.com/v1", None),
        ("http://[::1]:8000/openai/v2 model=org/Name-7B", "http://[::1]:8000/openai/v2", "org/Name-7B"),
        ("http://localhost:8000 model=7", "http://localhost:8000/v1", "7"),
    ],
)
def test_a_server(text: str, url: str, model: str | None) -> None:
    assert parse_servers([text]) == [ServerChoice(url, model)]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([" "], "a server is empty; give URL or URL model=NAME"),
        (["localhost:8000"], '"localhost:8000" is no URL of a server; give one such as http://localhost:8000/v1'),
        (["ftp://host"], '"ftp://host" is no URL'),
        (["http://"], "is no URL"),
        (["http://host:99999"], "is no URL"),
        (["http://me:secret@host"], 'the URL of "host" holds a password; give a key in OPENAI_API_KEY instead'),
        (["http://host/v1?key=3"], "has a query or fragment; give the part that /completions follows"),
        (["http://host modl=x"], '"modl=x" is not of the form model=NAME'),
        (["http://host model="], '"model=" is not of the form model=NAME'),
        (["http://host model=a model=b"], "is not of the form model=NAME"),
        (["http://host", "http://host/v1"], '"http://host/v1" is given twice with the same model'),
    ],
)
def test_bad_servers_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_servers(texts)
    assert message in str(refused.value)
    assert "secret" not in str(refused.value)
