"""The command line's words for what is compared."""

from __future__ import annotations

import pytest

from paceline.bench.choices import parse_batches, parse_proposer, parse_proposers
from paceline.config.command_line import key_values


def test_draft_length_is_the_engines_and_the_rest_the_proposers() -> None:
    choice = parse_proposer("draft_model  num_speculative_tokens=3 model=target top=[1,2]")
    assert choice.label == "draft_model num_speculative_tokens=3 model=target top=[1,2]"
    assert choice.fields == {
        "proposer": "draft_model",
        "num_speculative_tokens": 3,
        "proposer_options": {"model": "target", "top": [1, 2]},
    }


def test_a_bare_name_leaves_the_engines_default() -> None:
    assert parse_proposer("ngram").fields == {"proposer": "ngram", "proposer_options": {}}


def test_one_proposer_twice_with_other_options() -> None:
    labels = [choice.label for choice in parse_proposers(["ngram max_match=2", "ngram max_match=4"])]
    assert labels == ["ngram max_match=2", "ngram max_match=4"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [(["ngram", " ngram"], '"ngram" is given twice'), ([" "], "a proposer is empty"), (["ngram k"], '"k" is not of')],
)
def test_bad_proposers(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_proposers(texts)


def test_values_are_json_where_they_are_json() -> None:
    assert key_values(["a=1", "b=true", "c=x=y", "d=null"]) == {"a": 1, "b": True, "c": "x=y", "d": None}


def test_a_pair_without_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match='"=1" is not of the form key=value'):
        key_values(["=1"])


def test_batches_are_ascending_and_distinct() -> None:
    assert parse_batches("16, 1,4,4") == [1, 4, 16]


@pytest.mark.parametrize("text", ["", "1,0", "1,-4", "four", "1,,2", "1.5"])
def test_bad_batches(text: str) -> None:
    with pytest.raises(ValueError, match="is no number of concurrent requests; give numbers from 1"):
        parse_batches(text)
