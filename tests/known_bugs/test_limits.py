"""Failures at the end of an output: stops, caps and context limits inside a run of accepted drafts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline import LLM, RequestOutput, SamplingParams
from paceline.engine.errors import RequestTooLongError

Serve = Callable[..., list[RequestOutput]]

VOCAB = 64
COUNTING = {token: (token + 1) % VOCAB for token in range(VOCAB)}
STOP = 4
CAPS = (2, 3, 5, 100)
# After 1 come 2, 3, the stop token 4, 5, 6, ...; the second prompt holds that run, so that lookup copies it.
STOP_PROMPTS = [[1], [2, 3, STOP, 5, 6, 7, 1]]


def counting_on(prompt: list[int], num_tokens: int) -> list[int]:
    return [(prompt[-1] + 1 + offset) % VOCAB for offset in range(num_tokens)]


def proposer_options(name: str, truth: list[list[int]]) -> dict[str, Any]:
    return {
        "none": {},
        "ngram": {"proposer": "ngram", "proposer_options": {"tokens_per_match": 4.0}},
        "draft_model": {"proposer": "draft_model", "proposer_options": {"model": "target"}},
        "oracle": {"proposer": "probes:oracle", "proposer_options": {"truth": truth}},
        "tree": {"proposer": "probes:tree", "proposer_options": {"truth": truth}},
    }[name]


@pytest.fixture(scope="module")
def counting(script: Callable[..., str]) -> dict[str, str]:
    """Models that count, with and without an end token."""
    return {"eos": script(COUNTING, vocab_size=VOCAB, eos_token_id=STOP), "no_eos": script(COUNTING, vocab_size=VOCAB)}


STOP_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "eos": ("eos", {}),
    "stop_token_id": ("no_eos", {"stop_token_ids": [STOP]}),
    "eos_ignored": ("eos", {"ignore_eos": True}),
}


@pytest.mark.parametrize("kind", STOP_KINDS)
@pytest.mark.parametrize("proposer", ["none", "ngram", "draft_model", "oracle", "tree"])
def test_the_first_of_stop_and_cap_in_token_order_ends_the_output(
    counting: dict[str, str], engines: Callable[..., LLM], serve: Serve, proposer: str, kind: str
) -> None:
    """B006."""
    model, extra = STOP_KINDS[kind]
    truth = [prompt + counting_on(prompt, 110) for prompt in STOP_PROMPTS]
    options = proposer_options(proposer, truth)
    if options:
        options |= {"num_speculative_tokens": 6}
    cells = [(prompt, cap) for prompt in STOP_PROMPTS for cap in CAPS]
    params = [SamplingParams(temperature=0.0, max_tokens=cap, **extra) for _, cap in cells]
    outputs = serve(engines(counting[model], **options), [prompt for prompt, _ in cells], params)
    for (prompt, cap), output in zip(cells, outputs, strict=True):
        check_stop(output, prompt, cap, kind)
    if proposer != "none" and kind != "eos_ignored":  # the stop lay inside a run: drafts behind it were cut off
        metrics = outputs[-1].metrics
        assert metrics.num_draft_tokens > metrics.num_accepted_tokens > 0


def check_stop(output: RequestOutput, prompt: list[int], cap: int, kind: str) -> None:
    completion = output.outputs[0]
    stops = kind != "eos_ignored" and cap >= 3
    assert completion.token_ids == counting_on(prompt, 3 if stops else cap)
    assert completion.finish_reason == ("stop" if stops else "length")
    assert completion.stop_reason == (STOP if stops and kind == "stop_token_id" else None)
    assert output.metrics.num_generated_tokens == len(completion.token_ids)
    assert output.prompt_token_ids == prompt


@pytest.mark.parametrize("length", range(1, 6))
@pytest.mark.parametrize("proposer", ["ngram", "oracle"])
def test_exactly_max_tokens_are_delivered_and_counted(
    counting: dict[str, str], engines: Callable[..., LLM], serve: Serve, proposer: str, length: int
) -> None:
    """B008: max_tokens from 1 to the draft length + 3; the prompt has counted once round, so lookup finds all."""
    prompt = counting_on([VOCAB - 1], VOCAB + 2)
    caps = range(1, length + 4)
    options = proposer_options(proposer, [prompt + counting_on(prompt, 20)])
    llm = engines(counting["no_eos"], num_speculative_tokens=length, **options)
    params = [SamplingParams(temperature=0.0, max_tokens=cap, logprobs=0) for cap in caps]
    for cap, output in zip(caps, serve(llm, [prompt] * len(caps), params), strict=True):
        completion = output.outputs[0]
        assert completion.token_ids == counting_on(prompt, cap)
        assert completion.logprobs is not None
        assert len(completion.logprobs) == len(completion.token_ids) == output.metrics.num_generated_tokens == cap
        assert completion.finish_reason == "length"
        assert (output.metrics.num_draft_tokens > 0) == (cap > 2)
        assert output.metrics.num_accepted_tokens == output.metrics.num_draft_tokens


def near_limit_prompts() -> list[list[int]]:
    """55 to 63 tokens, by turns random and repeating themselves."""
    random = np.random.default_rng(3)
    phrase = random.integers(0, 512, 5).tolist()
    return [(phrase * 13)[:n] if n % 2 else random.integers(0, 512, n).tolist() for n in range(55, 64)]


@pytest.fixture(scope="module")
def canary(greedy: Callable[..., list[list[int]]], serve: Serve) -> Callable[[LLM, str], None]:
    """``(llm, model directory)``: a request with a known answer ends right within 5 s."""

    def sing(llm: LLM, path: str) -> None:
        wanted = greedy(path, [[3, 1, 4, 1, 5]], 8, max_model_len=64)
        started_s = time.perf_counter()
        outputs = serve(llm, [[3, 1, 4, 1, 5]], SamplingParams(temperature=0.0, max_tokens=8))
        assert outputs[0].outputs[0].token_ids == wanted[0]
        assert time.perf_counter() - started_s < 5.0

    return sing


@pytest.mark.parametrize("max_tokens", [{}, {"max_tokens": None}], ids=["default", "no_cap"])
@pytest.mark.parametrize("proposer", ["none", "ngram", "draft_model", "oracle", "tree"])
def test_drafts_end_at_the_context_limit_of_the_target(
    tiny: Callable[..., str],
    engines: Callable[..., LLM],
    serve: Serve,
    greedy: Callable[..., list[list[int]]],
    canary: Callable[[LLM, str], None],
    proposer: str,
    max_tokens: dict[str, Any],
) -> None:
    """B014: prompts of 55 to 63 tokens where 64 is the limit."""
    path = tiny(max_position_embeddings=64)
    wanted = greedy(path, near_limit_prompts(), None, max_model_len=64)
    truth = [prompt + output for prompt, output in zip(near_limit_prompts(), wanted, strict=True)]
    llm = engines(path, max_model_len=64, **proposer_options(proposer, truth))
    outputs = serve(llm, near_limit_prompts(), SamplingParams(temperature=0.0, **max_tokens))
    for prompt, output, ids in zip(near_limit_prompts(), outputs, wanted, strict=True):
        assert output.outputs[0].token_ids == ids
        assert len(prompt) + len(ids) == 64
        assert output.outputs[0].finish_reason == "length"
        if proposer != "tree":  # the first token comes without drafts, and the last of a run is the target's own
            assert len(output.metrics.accepted_per_position) <= max(64 - len(prompt) - 2, 0)
    assert (sum(output.metrics.num_draft_tokens for output in outputs) > 0) == (proposer != "none")
    canary(llm, path)


def test_a_prompt_that_fills_the_context_is_refused(
    tiny: Callable[..., str],
    engines: Callable[..., LLM],
    settled: Callable[[LLM], None],
    canary: Callable[[LLM, str], None],
) -> None:
    """B014."""
    path = tiny(max_position_embeddings=64)
    llm = engines(path, max_model_len=64, proposer="ngram")
    for num_tokens in (64, 65, 200):
        with pytest.raises(RequestTooLongError, match=f"the prompt has {num_tokens} tokens, and max_model_len is 64"):
            llm.generate({"prompt_token_ids": [1] * num_tokens}, SamplingParams(), use_tqdm=False)
        settled(llm)
    canary(llm, path)


def test_past_the_context_of_the_draft_model_a_request_goes_on_without_drafts(
    tiny: Callable[..., str],
    engines: Callable[..., LLM],
    serve: Serve,
    greedy: Callable[..., list[list[int]]],
    canary: Callable[[LLM, str], None],
) -> None:
    """B014: the draft model, made for 32 positions, has the target's weights, so within them all is accepted."""
    target, draft = tiny(max_position_embeddings=128), tiny(max_position_embeddings=32)
    random = np.random.default_rng(6)
    prompts = [random.integers(0, 512, n).tolist() for n in range(20, 61)]
    wanted = greedy(target, prompts, None, max_model_len=128)
    llm = engines(target, max_model_len=128, proposer="draft_model", proposer_options={"model": draft})
    outputs = serve(llm, prompts, SamplingParams(temperature=0.0, max_tokens=None))
    for prompt, output, ids in zip(prompts, outputs, wanted, strict=True):
        assert output.outputs[0].token_ids == ids
        assert len(prompt) + len(ids) == 128
        assert output.outputs[0].finish_reason == "length"
        assert (output.metrics.num_draft_tokens > 0) == (len(prompt) < 32)
        assert output.metrics.num_accepted_tokens == output.metrics.num_draft_tokens
    canary(llm, target)
