"""Failures of scheduling: requests that wait for ever, and preemptions without progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline import LLM, RequestOutput, SamplingParams
from paceline.engine.errors import RequestTooLongError
from paceline.engine.prompts import Prompt

PROPOSERS: dict[str, dict[str, Any]] = {
    "none": {},
    "draft_model": {"proposer": "draft_model", "proposer_options": {"model": "target"}, "num_speculative_tokens": 4},
}


def random_prompts(seed: int, *lengths: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 512, length).tolist() for length in lengths]


def capped(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


def add(llm: LLM, tokens: list[int], params: SamplingParams) -> str:
    return llm.add_request(Prompt(token_ids=np.array(tokens)), params)


# A pool that is smaller than max_model_len.

USABLE = 40  # 10 blocks of 4; none is reserved
SMALL = capped(4)


@pytest.fixture(params=PROPOSERS)
def small_pool(request: pytest.FixtureRequest, tiny: Callable[..., str], engines: Callable[..., LLM]) -> LLM:
    options = PROPOSERS[request.param]
    llm = engines(tiny(), block_size=4, num_gpu_blocks_override=10, max_model_len=200, **options)
    assert llm.engine.kv.capacity_tokens == USABLE
    return llm


def finish_timed(llm: LLM) -> dict[str, tuple[RequestOutput, float]]:
    """Step to the end: outputs, and when each came, in seconds from now."""
    started_s = time.perf_counter()
    finished: dict[str, tuple[RequestOutput, float]] = {}
    num_idle_steps = 0
    while llm.engine.has_requests:
        result = llm.engine.step()
        num_idle_steps = 0 if result.new_tokens else num_idle_steps + 1
        assert num_idle_steps < 20, "nobody emits anything any more"
        finished |= {output.request_id: (output, time.perf_counter() - started_s) for output in result.finished}
    return finished


# Prompt and cap of the big request, and how many tokens it must get: the pool holds the KV of 40, and so gives 41.
BIG = {
    "usable - 1": (USABLE - 1, 16, 2),
    "usable": (USABLE, 16, 1),
    "too long a cap": (10, 150, USABLE + 1 - 10),
    "no cap": (10, None, USABLE + 1 - 10),
}


@pytest.mark.parametrize("big", BIG)
@pytest.mark.parametrize("is_first", [True, False])
def test_what_just_fits_is_served_as_are_those_behind_it(
    tiny: Callable[..., str],
    small_pool: LLM,
    settled: Callable[[LLM], None],
    greedy: Callable[..., list[list[int]]],
    big: str,
    is_first: bool,
) -> None:
    """B036: what outgrows the pool ends with "length"; three small requests wait behind it or stand before it."""
    num_prompt_tokens, max_tokens, num_output_tokens = BIG[big]
    big_prompt, *small_prompts = random_prompts(1, num_prompt_tokens, 5, 6, 7)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    small_ids = [] if is_first else [add(small_pool, tokens, SMALL) for tokens in small_prompts]
    big_id = add(small_pool, big_prompt, params)
    if is_first:
        small_ids = [add(small_pool, tokens, SMALL) for tokens in small_prompts]
    finished = finish_timed(small_pool)
    settled(small_pool)

    output, answered_s = finished[big_id]
    assert output.outputs[0].token_ids == greedy(tiny(), [big_prompt], num_output_tokens)[0]
    assert output.outputs[0].finish_reason == "length"
    assert answered_s < 5.0
    assert [finished[i][0].outputs[0].token_ids for i in small_ids] == greedy(tiny(), small_prompts, 4)
    assert all(finished[request_id][1] < 5.0 for request_id in small_ids)


@pytest.mark.parametrize("num_tokens", [USABLE + 1, 100, 199])
def test_a_prompt_larger_than_the_pool_is_refused_at_once(
    tiny: Callable[..., str],
    small_pool: LLM,
    settled: Callable[[LLM], None],
    greedy: Callable[..., list[list[int]]],
    num_tokens: int,
) -> None:
    """B036: within max_model_len, but larger than the whole pool; three small requests behind it are served."""
    big_prompt, *small_prompts = random_prompts(1, num_tokens, 5, 6, 7)
    asked_s = time.perf_counter()
    with pytest.raises(RequestTooLongError, match=f"{num_tokens} tokens, and the whole KV cache holds {USABLE}; "):
        add(small_pool, big_prompt, SMALL)
    assert time.perf_counter() - asked_s < 1.0
    assert small_pool.engine.num_waiting == 0
    small_ids = [add(small_pool, tokens, SMALL) for tokens in small_prompts]
    finished = finish_timed(small_pool)
    settled(small_pool)
    assert [finished[i][0].outputs[0].token_ids for i in small_ids] == greedy(tiny(), small_prompts, 4)
    assert all(finished[request_id][1] < 5.0 for request_id in small_ids)


def test_a_batch_with_a_prompt_larger_than_the_pool_leaves_nothing_behind(
    small_pool: LLM, settled: Callable[[LLM], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B036: it is refused before the engine takes a step."""
    monkeypatch.setattr(small_pool.engine, "step", lambda: pytest.fail("the engine ran"))
    prompts = [{"prompt_token_ids": tokens} for tokens in random_prompts(1, 5, USABLE + 1, 6)]
    with pytest.raises(RequestTooLongError):
        small_pool.generate(prompts, SMALL, use_tqdm=False)
    settled(small_pool)


# A pool for one request and a half.

NUM_REQUESTS, NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS, CHUNK = 6, 20, 60, 16
SERIAL_STEPS = NUM_REQUESTS * (math.ceil(NUM_PROMPT_TOKENS / CHUNK) + NUM_OUTPUT_TOKENS - 1)
MAX_STEPS_WITHOUT_A_TOKEN = 2 * math.ceil((NUM_PROMPT_TOKENS + NUM_OUTPUT_TOKENS) / CHUNK)
MAX_PREEMPTIONS = 10


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_requests_that_preempt_each_other_all_end(
    tiny: Callable[..., str],
    engines: Callable[..., LLM],
    settled: Callable[[LLM], None],
    greedy: Callable[..., list[list[int]]],
    proposer: str,
    enable_prefix_caching: bool,
) -> None:
    """B038: six requests of 20 + 60 tokens where the pool holds 120, and a step less than a prompt."""
    llm = engines(
        tiny(),
        block_size=4,
        num_gpu_blocks_override=(NUM_PROMPT_TOKENS + NUM_OUTPUT_TOKENS) * 3 // 2 // 4,
        max_num_batched_tokens=CHUNK,
        max_num_seqs=NUM_REQUESTS,
        enable_prefix_caching=enable_prefix_caching,
        **PROPOSERS[proposer],
    )
    prompts = random_prompts(2, *[NUM_PROMPT_TOKENS] * NUM_REQUESTS)
    ids = [add(llm, tokens, capped(NUM_OUTPUT_TOKENS)) for tokens in prompts]
    finished = finish_with_progress(llm)
    settled(llm)

    wanted = greedy(tiny(), prompts, NUM_OUTPUT_TOKENS)
    assert [finished[i].outputs[0].token_ids for i in ids] == wanted
    num_preemptions = [finished[i].metrics.num_preemptions for i in ids]
    assert sum(num_preemptions) > 0
    assert max(num_preemptions) <= MAX_PREEMPTIONS


def finish_with_progress(llm: LLM) -> dict[str, RequestOutput]:
    finished: dict[str, RequestOutput] = {}
    num_steps = num_since_token = 0
    while llm.engine.has_requests:
        result = llm.engine.step()
        num_steps += 1
        num_since_token = 0 if result.new_tokens else num_since_token + 1
        assert num_since_token <= MAX_STEPS_WITHOUT_A_TOKEN, f"no token since step {num_steps - num_since_token}"
        assert num_steps <= 20 * SERIAL_STEPS
        finished |= {output.request_id: output for output in result.finished}
    return finished
