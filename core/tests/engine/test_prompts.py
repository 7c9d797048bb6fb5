from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.engine.errors import RequestError
from paceline.engine.prompts import Prompt, parse_prompt, parse_prompts


def test_texts_and_mappings() -> None:
    assert parse_prompts("one") == [Prompt(text="one")]
    assert [prompt.text for prompt in parse_prompts(["a", {"prompt": "b"}, ""])] == ["a", "b", ""]
    assert parse_prompts([]) == []


@pytest.mark.parametrize(
    "tokens", [[3, 4], (3, 4), np.array([3, 4]), np.array([3, 4], dtype=np.uint8), [np.int32(3), 4]]
)
def test_token_ids_of_any_integer_kind(tokens: Any) -> None:
    ids = parse_prompt({"prompt_token_ids": tokens}).token_ids
    assert ids is not None and ids.dtype == np.int64 and ids.tolist() == [3, 4]


def test_all_keys() -> None:
    given = {"prompt": "x", "prompt_token_ids": [1], "metadata": {"a": 1}, "num_speculative_tokens": 0}
    prompt = parse_prompt({**given, "cache_salt": "s", "trust_domain": "d"})
    assert (prompt.text, prompt.cache_salt, prompt.trust_domain) == ("x", "s", "d")
    assert (prompt.metadata, prompt.num_speculative_tokens) == ({"a": 1}, 0)


def test_the_trust_domain_is_the_salt_unless_given() -> None:
    assert parse_prompt({"prompt": "x", "cache_salt": "s"}).trust_domain == "s"
    assert parse_prompt({"prompt": "x", "cache_salt": None}).trust_domain == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "prompts is a int; give a string, a mapping, or a list of them"),
        (["a", 7], "prompt 1 is a int; give a string or a mapping"),
        (b"bytes", "prompt 0 is a int; give a string or a mapping"),
        ([{"promt": "x"}], 'prompt 0 has the unknown key "promt"; did you mean "prompt"?'),
        ([{7: "x"}], 'prompt 0 has the unknown key "7"; known: '),
        ([{}], 'prompt 0 has neither "prompt" nor "prompt_token_ids"; give one of them'),
        ([{"prompt": None}], 'prompt 0 has neither "prompt" nor "prompt_token_ids"; give one of them'),
        ([{"prompt": 3}], 'prompt 0: "prompt" is a int; give a string'),
        ([{"prompt": "x", "cache_salt": 3}], 'prompt 0: "cache_salt" is a int; give a string'),
        ([{"prompt": "x", "trust_domain": b"d"}], 'prompt 0: "trust_domain" is a bytes; give a string'),
        ([{"prompt": "x", "metadata": [1]}], 'prompt 0: "metadata" is a list; give a mapping'),
        ([{"prompt": "x", "num_speculative_tokens": -1}], 'prompt 0: "num_speculative_tokens" is -1; give 0 (off) or'),
        ([{"prompt": "x", "num_speculative_tokens": True}], 'prompt 0: "num_speculative_tokens" is True; give 0 (off)'),
        ([{"prompt_token_ids": "12"}], 'prompt 0: "prompt_token_ids" is a str; give a list of token ids'),
        ([{"prompt_token_ids": 5}], 'prompt 0: "prompt_token_ids" is a int; give a list of token ids'),
        ([{"prompt_token_ids": [1, True]}], "prompt 0: token True at position 1 is no token id; give integers from 0"),
        ([{"prompt_token_ids": [1.5]}], "prompt 0: token 1.5 at position 0 is no token id; give integers from 0"),
        ([{"prompt_token_ids": np.array([1.0])}], "prompt 0: token 1.0 at position 0 is no token id"),
        ([{"prompt_token_ids": [[1, 2], [3]]}], "prompt 0: token [1, 2] at position 0 is no token id"),
        ([{"prompt_token_ids": [2**63]}], "prompt 0: token 9223372036854775808 at position 0 is no token id"),
    ],
)
def test_what_is_wrong_with_a_prompt_is_named(given: Any, message: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_prompts(given)
    assert str(error.value).startswith(f"PACELINE-E110: {message}")
