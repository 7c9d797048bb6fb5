"""What can never be served is refused at once, with its reason, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.engine.errors import RequestError, RequestTooLongError

VOCAB = 16


def refused(
    harness: Callable[..., Any], prompt: list[int], kind: type[RequestError] = RequestError, **params: Any
) -> str:
    engine = harness(max_model_len=20, num_blocks=4, block_size=4)
    with pytest.raises(kind) as error:
        engine.add(prompt, "r", **params)
    assert type(error.value) is kind
    assert not engine.engine.has_requests and engine.engine.num_waiting == 0 and engine.kv.num_used == 0
    assert engine.add([1], "r", max_tokens=1) == "r" and engine.run()["r"].finished
    return str(error.value)


@pytest.mark.parametrize("bad", [-1, VOCAB, 2**31, 2**62])
@pytest.mark.parametrize("position", [0, 2])
def test_a_token_outside_the_vocabulary_is_named(harness: Callable[..., Any], bad: int, position: int) -> None:
    prompt = [1, 2, 3]
    prompt[position] = bad
    assert refused(harness, prompt) == (
        f'PACELINE-E110: request "r": prompt token {bad} at position {position} is outside the vocabulary of 16; '
        "ids go from 0 to 15"
    )


def test_an_empty_prompt(harness: Callable[..., Any]) -> None:
    assert refused(harness, []) == 'PACELINE-E110: request "r": the prompt is empty; give at least one token'


def test_a_stop_id_outside_the_vocabulary(harness: Callable[..., Any]) -> None:
    message = refused(harness, [1], stop_token_ids=[3, VOCAB])
    assert message == 'PACELINE-E110: request "r": stop token id 16 is outside the vocabulary of 16'


def test_a_negative_draft_limit(harness: Callable[..., Any]) -> None:
    message = refused(harness, [1], draft_limit=-1)
    assert message == "PACELINE-E110: num_speculative_tokens is -1; it must be 0 (off) or more"


def test_a_prompt_as_long_as_the_model(harness: Callable[..., Any]) -> None:
    assert refused(harness, [1] * 20, RequestTooLongError) == (
        'PACELINE-E111: request "r": the prompt has 20 tokens, and max_model_len is 20, which must hold at least one '
        "more; shorten it or raise max_model_len"
    )


def test_a_prompt_that_the_pool_cannot_hold(harness: Callable[..., Any]) -> None:
    assert refused(harness, [1] * 17, RequestTooLongError) == (
        'PACELINE-E111: request "r": the prompt has 17 tokens, and the whole KV cache holds 16; shorten it or give the '
        "cache more blocks (num_gpu_blocks_override, kv_cache_memory_bytes or gpu_memory_utilization)"
    )


def test_an_id_in_use_is_refused_and_free_again_afterwards(harness: Callable[..., Any]) -> None:
    engine = harness()
    engine.add([1], "twin", max_tokens=2)
    with pytest.raises(RequestError, match='request id "twin" is in use by a live request; choose another'):
        engine.add([2], "twin", max_tokens=2)
    engine.run()
    engine.outputs.clear()
    engine.add([2], "twin", max_tokens=2)
    assert engine.run()["twin"].prompt_token_ids == [2]


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "emitted"),
    [(1, 3, 3), (18, None, 2), (19, 5, 1), (16, 100, 4)],
    ids=["its own cap", "the model's length", "one left", "less than asked"],
)
def test_it_ends_at_the_first_limit(
    harness: Callable[..., Any], prompt_len: int, max_tokens: int | None, emitted: int
) -> None:
    engine = harness(max_model_len=20)
    request_id = engine.add([1] * prompt_len, max_tokens=max_tokens)
    output = engine.run()[request_id].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (emitted, "length")


def test_a_pool_smaller_than_the_model_ends_it_with_the_pool_full(harness: Callable[..., Any]) -> None:
    engine = harness(max_model_len=64, num_blocks=3, block_size=4)
    request_id = engine.add([1] * 12, max_tokens=None)
    assert len(engine.run()[request_id].outputs[0].token_ids) == 1, "the last token needs no KV"


def test_refused_requests_do_not_shift_the_seeds_of_later_ones(harness: Callable[..., Any]) -> None:
    def seeds(*, with_refusal: bool) -> list[int]:
        engine = harness(seed=5, max_model_len=20)
        if with_refusal:
            with pytest.raises(RequestTooLongError):
                engine.add([1] * 30, temperature=1.0)
        ids = [engine.add([1], temperature=1.0, max_tokens=1) for _ in range(3)]
        return [engine.engine._requests[request_id].sampling.seed for request_id in ids]

    assert seeds(with_refusal=True) == seeds(with_refusal=False)
    assert len(set(seeds(with_refusal=False))) == 3


def test_seeds_differ_between_engines_unless_given(harness: Callable[..., Any]) -> None:
    def seed_of(**options: Any) -> int:
        engine = harness(**options)
        return engine.engine._requests[engine.add([1], temperature=1.0)].sampling.seed

    assert seed_of(seed=1) == seed_of(seed=1) != seed_of(seed=2)
    assert seed_of(seed=None) != seed_of(seed=None)
