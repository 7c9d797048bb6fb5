from __future__ import annotations

import pytest
from pydantic import ValidationError

from paceline.api.errors import PacelineError
from paceline.sampling.errors import BeamSearchError, SamplingParamsError
from paceline.sampling.params import SamplingParams


def test_defaults():
    params = SamplingParams()
    assert params.model_dump() == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": None,
        "max_tokens": 16,
        "min_tokens": 0,
        "stop_token_ids": [],
        "ignore_eos": False,
        "logprobs": None,
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "prompt_logprobs": None,
        "logit_bias": {},
        "allowed_token_ids": None,
        "structured_outputs": None,
        "constraints": {},
        "bad_words": [],
        "stop": [],
        "include_stop_str_in_output": False,
        "skip_special_tokens": True,
    }
    assert not params.is_greedy
    assert SamplingParams(temperature=0).is_greedy


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 1},
        {"top_k": -1},
        {"top_p": 1},
        {"min_p": 1.0},
        {"seed": 2**63 - 1},
        {"seed": 0},
        {"max_tokens": None, "min_tokens": 500},
        {"max_tokens": 3, "min_tokens": 3},
        {"logprobs": 0},
        {"logprobs": 20},
        {"stop_token_ids": (1, 2)},
        {"n": 16384},
        {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 0.01},
        {"repetition_penalty": 100},
        {"prompt_logprobs": 0},
        {"logit_bias": {3: -100, 4: 100}},
        {"allowed_token_ids": {5}},
        {"bad_words": ("no",)},
    ],
)
def test_values_at_the_bounds(values):
    params = SamplingParams(**values)
    for name, value in values.items():
        kept = getattr(params, name)
        assert (kept if value is None else type(value)(kept)) == value


def test_no_stop_ids():
    assert SamplingParams(stop_token_ids=None).stop_token_ids == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -0.5}, "temperature=-0.5: input should be greater than or equal to 0 (0 is greedy)"),
        ({"temperature": 1e-7}, "temperature=1e-07: a positive value should be at least 1e-05 (0 is greedy)"),
        ({"temperature": float("nan")}, "temperature=nan: input should be a finite number (0 is greedy)"),
        ({"temperature": 1e5}, "temperature=100000.0: input should be less than or equal to 10000 (0 is greedy)"),
        ({"temperature": "hot"}, "temperature='hot': input should be a valid number (0 is greedy)"),
        ({"top_p": 0.0}, "top_p=0.0: input should be greater than 0 (1 is off)"),
        ({"top_p": 1.5}, "top_p=1.5: input should be less than or equal to 1 (1 is off)"),
        ({"top_k": -2}, "top_k=-2: input should be greater than or equal to -1 (0 and -1 are off)"),
        ({"top_k": True}, "top_k=True: input should be a valid integer (0 and -1 are off)"),
        ({"min_p": 1.1}, "min_p=1.1: input should be less than or equal to 1 (0 is off)"),
        ({"seed": 2**63}, f"seed={2**63}: input should be less than {2**63} (None draws a random one)"),
        ({"seed": -1}, "seed=-1: input should be greater than or equal to 0 (None draws a random one)"),
        ({"max_tokens": 0}, "max_tokens=0: input should be greater than or equal to 1 (None is up to the context"),
        ({"min_tokens": -1}, "min_tokens=-1: input should be greater than or equal to 0 (0 is off)"),
        ({"logprobs": 21}, "logprobs=21: input should be less than or equal to 20 (None is no report)"),
        ({"stop_token_ids": [-3]}, "stop_token_ids=-3: input should be greater than or equal to 0"),
        ({"stop_token_ids": "ab"}, "stop_token_ids='ab': input should be a valid list (a list of token ids)"),
        ({"n": 0}, "n=0: input should be greater than or equal to 1 (1 is one completion)"),
        ({"presence_penalty": 2.5}, "presence_penalty=2.5: input should be less than or equal to 2 (0 is off)"),
        ({"frequency_penalty": -3}, "frequency_penalty=-3: input should be greater than or equal to -2 (0 is off)"),
        ({"repetition_penalty": 0}, "repetition_penalty=0: input should be greater than or equal to 0.01 (1 is off)"),
        ({"prompt_logprobs": 21}, "prompt_logprobs=21: input should be less than or equal to 20 (None is no report)"),
        ({"logit_bias": {5: 101}}, "logit_bias=101: input should be less than or equal to 100 (token ids with numbers"),
        ({"logit_bias": {"a": 1}}, "logit_bias='a': input should be a valid integer (token ids with numbers"),
        ({"logit_bias": [1]}, "logit_bias=[1]: input should be a valid dictionary (token ids with numbers"),
        ({"allowed_token_ids": []}, "allowed_token_ids=[]: list should have at least 1 item"),
        ({"bad_words": ["x", " "]}, "bad_words=['x', ' ']: a bad word should be more than white space"),
        ({"bad_words": "word"}, "bad_words='word': input should be a valid list (a list of texts)"),
        ({"min_tokens": 20}, "min_tokens=20 exceeds max_tokens=16; lower the one or raise the other"),
    ],
)
def test_bad_values_are_named_with_their_bound(values, message):
    with pytest.raises(SamplingParamsError) as caught:
        SamplingParams(**values)
    assert str(caught.value).startswith("PACELINE-E501: ")
    assert message in str(caught.value)


def test_unknown_names_are_refused_with_the_nearest_known_one():
    with pytest.raises(SamplingParamsError, match=r'parameter "temprature"; did you mean "temperature"\?'):
        SamplingParams(temprature=0.5)
    with pytest.raises(SamplingParamsError, match=r'unknown sampling parameter "zzz"; known: .*temperature'):
        SamplingParams(zzz=2)


def test_all_faults_are_reported_at_once():
    with pytest.raises(PacelineError, match=r"top_k=-5.*min_p=2"):
        SamplingParams(top_k=-5, min_p=2.0)


def test_validation_from_a_dict_raises_the_same_error():
    with pytest.raises(SamplingParamsError, match="top_p"):
        SamplingParams.model_validate({"top_p": 3.0})


def test_numbers_of_a_bias_may_come_as_json_has_them():
    assert SamplingParams(logit_bias={"5": 1, 7: -2.5}).logit_bias == {5: 1.0, 7: -2.5}
    assert SamplingParams(logit_bias=None, bad_words=None).logit_bias == {}


@pytest.mark.parametrize("given", [{"use_beam_search": True}, {"best_of": 4, "n": 2}])
def test_beam_search_is_refused_by_name(given):
    name = next(iter(given))
    with pytest.raises(BeamSearchError, match=rf"PACELINE-E502: {name} is refused: beam search .*n=\.\.\., logprobs=0"):
        SamplingParams(**given)


@pytest.mark.parametrize("given", [{"presence_penalty": 1}, {"frequency_penalty": -1}, {"repetition_penalty": 1.1}])
def test_penalties_are_noticed(given):
    assert SamplingParams(**given).has_penalties
    assert not SamplingParams(temperature=0.5).has_penalties


def test_immutable():
    with pytest.raises(ValidationError, match="frozen"):
        SamplingParams().temperature = 0.0
