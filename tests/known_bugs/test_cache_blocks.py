"""Failures of cached blocks: a prompt with nothing left to compute, and keys that outlive their block's content."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from paceline import LLM, RequestOutput, SamplingParams
from paceline.api import RequestFacts
from paceline.engine.prompts import Prompt

Serve = Callable[..., list[RequestOutput]]

SHORT = SamplingParams(temperature=0.0, max_tokens=3, logprobs=0)


def scored(output: RequestOutput) -> tuple[list[int], list[float]]:
    """The emitted tokens and the bits of their log-probabilities."""
    completion = output.outputs[0]
    assert completion.logprobs is not None
    return completion.token_ids, [e[t].logprob for t, e in zip(completion.token_ids, completion.logprobs, strict=True)]


@pytest.fixture(scope="module")
def cold(tiny: Callable[..., str], engines: Callable[..., LLM], serve: Serve) -> list[tuple[list[int], list[float]]]:
    """What the first 1 to 26 tokens of one prompt give without a cache."""
    llm = engines(tiny(), numerics="exact", block_size=4, max_model_len=64, enable_prefix_caching=False)
    return [scored(output) for output in serve(llm, [long_prompt()[:length] for length in range(1, 27)], SHORT)]


def long_prompt() -> list[int]:
    return np.random.default_rng(8).integers(0, 512, 26).tolist()


PROPOSERS: dict[str, dict[str, Any]] = {
    "none": {},
    "draft_model": {"proposer": "draft_model", "proposer_options": {"model": "target"}},
    "features": {"proposer": "probes:features"},  # it wants the last two tokens of a hit run again
}


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_a_prompt_wholly_in_cache_gives_what_it_gave(
    tiny: Callable[..., str],
    engines: Callable[..., LLM],
    serve: Serve,
    cold: list[tuple[list[int], list[float]]],
    proposer: str,
) -> None:
    """B026: blocks of 4; each length three times alone, three times at once, then one token more.

    Lengths go to 25, with a proposer to 12.
    """
    options = {"numerics": "exact", "block_size": 4, "max_model_len": 64, **PROPOSERS[proposer]}
    for length in range(1, 26 if proposer == "none" else 13):
        llm = engines(tiny(), **options)
        prompt = long_prompt()[:length]
        first, second, third = (serve(llm, [prompt], SHORT)[0] for _ in range(3))
        together = serve(llm, [prompt] * 3, SHORT)
        longer = serve(llm, [long_prompt()[: length + 1]], SHORT)[0]
        outputs = [first, second, third, *together]
        assert [scored(output) for output in outputs] == [cold[length - 1]] * 6
        assert scored(longer) == cold[length]
        assert first.num_cached_tokens == 0
        for output in [second, third, *together]:
            check_hit(output.num_cached_tokens, length, recomputed=2 if proposer == "features" else 1)


def check_hit(num_cached: int, length: int, recomputed: int) -> None:
    """What is in full blocks of the first run, its outputs among them, but for tokens that are computed again.

    Those are the prompt's last one, and as many at the hit's end as the proposer wants.
    """
    found = min((length + 3 - 1) // 4 * 4, length)
    if recomputed == 1:
        assert num_cached == min(found, length - 1)
        assert 4 * ((length - 1) // 4) <= num_cached <= max(length - 1, 0)
    else:
        assert num_cached == max(found - recomputed, 0)


@pytest.mark.parametrize("length", [4, 16, 17])
def test_three_at_once_on_an_empty_cache_give_what_one_gives(
    tiny: Callable[..., str],
    engines: Callable[..., LLM],
    serve: Serve,
    cold: list[tuple[list[int], list[float]]],
    length: int,
) -> None:
    """B026."""
    llm = engines(tiny(), numerics="exact", block_size=4, max_model_len=64)
    for _ in range(3):
        outputs = serve(llm, [long_prompt()[:length]] * 3, SHORT)
        assert [scored(output) for output in outputs] == [cold[length - 1]] * 3


NUM_BLOCKS = 12


def blocks_of_hit(llm: LLM, tokens: Sequence[int]) -> set[int]:
    """The blocks that a lookup of these tokens finds now."""
    kv, ids = llm.engine.kv, np.array(tokens)
    return set(kv.lookup(RequestFacts(request_id="again", num_prompt_tokens=len(ids)), ids).block_ids)


def test_a_recycled_block_is_found_under_its_new_key_only(
    tiny: Callable[..., str], engines: Callable[..., LLM], settled: Callable[[LLM], None], serve: Serve
) -> None:
    """B028: P and a longer P share 8 of 12 blocks, a fresh Q takes 11; in random order, of random output lengths."""
    rng, order = np.random.default_rng(4), random.Random(4)
    p = rng.integers(0, 512, 32).tolist()
    longer = [*p, *rng.integers(0, 512, 3).tolist()]
    plain = engines(tiny(), numerics="exact", block_size=4, max_model_len=64, enable_prefix_caching=False)
    llm = engines(tiny(), numerics="exact", block_size=4, max_model_len=64, num_gpu_blocks_override=NUM_BLOCKS)
    num_hits = 0
    for _ in range(10):
        q = rng.integers(0, 512, 44).tolist()
        wave = [(tokens, order.randint(2, 4)) for tokens in (p, longer, q)]
        order.shuffle(wave)
        params = [SamplingParams(temperature=0.0, max_tokens=n, logprobs=0) for _, n in wave]
        wanted = serve(plain, [tokens for tokens, _ in wave], params)
        outputs = run_watched(llm, [tokens for tokens, _ in wave], params, q, p)
        settled(llm)
        assert [scored(output) for output in outputs] == [scored(output) for output in wanted]
        num_hits += sum(output.num_cached_tokens > 0 for output in outputs)
    assert num_hits > 0


def run_watched(
    llm: LLM, prompts: list[list[int]], params: list[SamplingParams], q: list[int], p: list[int]
) -> list[RequestOutput]:
    """Serve the prompts; as soon as ``q`` has ended, none of the blocks that it filled may be found for ``p``."""
    engine = llm.engine
    ids = [
        llm.add_request(Prompt(token_ids=np.array(tokens)), own) for tokens, own in zip(prompts, params, strict=True)
    ]
    finished: dict[str, RequestOutput] = {}
    blocks_of_q: set[int] = set()
    q_id = ids[prompts.index(q)]
    while engine.has_requests:
        for output in engine.step().finished:
            finished[output.request_id] = output
            if output.request_id == q_id:
                assert output.num_cached_tokens == 0
                assert blocks_of_q
                assert not blocks_of_hit(llm, p) & blocks_of_q
        if q_id in engine.kv.sequences:
            blocks_of_q = set(engine.kv.sequences[q_id].block_ids)
        assert len(engine.kv.cache.index) <= NUM_BLOCKS
    return [finished[request_id] for request_id in ids]
