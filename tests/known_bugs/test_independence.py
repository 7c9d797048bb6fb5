"""What a request gets does not depend on its batch-mates, nor on being preempted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from paceline import LLM, RequestOutput, SamplingParams

PROMPT = {"prompt_token_ids": [7, 8, 9] * 4}
MATES = [{"prompt_token_ids": np.random.default_rng(seed).integers(0, 512, 9).tolist()} for seed in range(5)]


def ids(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def hot(seed: int | None) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=30)


@pytest.fixture(scope="module")
def llm(tiny: Callable[..., str]) -> Iterator[LLM]:
    with LLM(tiny(), numerics="exact", max_model_len=64, proposer="ngram", num_speculative_tokens=3) as made:
        yield made


def test_seeds_hold_whatever_the_batch_mates(llm: LLM) -> None:
    """B011: a seeded request gives the same tokens alone and in company, and a greedy neighbour is unchanged."""
    greedy = SamplingParams(temperature=0.0, max_tokens=30)
    alone = [ids(llm.generate(PROMPT, hot(42), use_tqdm=False)[0]) for _ in range(2)]
    neighbour = ids(llm.generate(MATES[0], greedy, use_tqdm=False)[0])
    params = [hot(42), *map(hot, (None, 1, 1, 2, None)), greedy]
    together = [llm.generate([PROMPT, *MATES, MATES[0]], params, use_tqdm=False) for _ in range(2)]
    assert alone[0] == alone[1] == ids(together[0][0]) == ids(together[1][0])
    assert ids(together[0][6]) == ids(together[1][6]) == neighbour


def test_unseeded_requests_do_not_share_a_stream(llm: LLM) -> None:
    """B011: of 20 unseeded runs of one prompt most differ."""
    outputs = llm.generate([PROMPT] * 20, hot(None), use_tqdm=False)
    assert len({tuple(ids(output)) for output in outputs}) >= 15


@pytest.mark.parametrize("proposer", [None, "ngram"])
def test_preemption_is_invisible(tiny: Callable[..., str], proposer: str | None) -> None:
    """B039: outputs made before a preemption stay outputs: same tokens, log-probabilities and usage as alone."""
    params = SamplingParams(temperature=0.8, seed=5, frequency_penalty=1.0, min_tokens=20, logprobs=2, max_tokens=40)
    prompts = [PROMPT, *MATES]
    settings = {"numerics": "exact", "max_model_len": 64, "block_size": 4, "proposer": proposer}
    with LLM(tiny(), enable_prefix_caching=False, **settings) as roomy:
        solo = [roomy.generate(prompt, params, use_tqdm=False)[0] for prompt in prompts]
    with LLM(tiny(), num_gpu_blocks_override=22, **settings) as tight:
        outputs = tight.generate(prompts, params, use_tqdm=False)
        assert tight.engine.stats.num_preemptions > 0
    for got, wanted in zip(outputs, solo, strict=True):
        assert ids(got) == ids(wanted)
        assert got.outputs[0].logprobs == wanted.outputs[0].logprobs
        assert got.metrics.num_generated_tokens == wanted.metrics.num_generated_tokens == 40
        assert got.num_cached_tokens == 0


@pytest.mark.parametrize("proposer", [None, "ngram"])
def test_preemption_repeats_and_drops_nothing_of_a_stream(
    tiny: Callable[..., str], worded: Callable[[str], str], proposer: str | None
) -> None:
    """B039: the pieces of a stream that was preempted join to the text and the tokens of the final output."""
    params = SamplingParams(temperature=0.8, seed=5, frequency_penalty=1.0, min_tokens=20, logprobs=2, max_tokens=40)
    settings = {"numerics": "exact", "max_model_len": 64, "block_size": 4, "proposer": proposer}
    model, prompts = worded(tiny()), [PROMPT, *MATES]
    with LLM(model, enable_prefix_caching=False, **settings) as roomy:
        solo = [roomy.generate(prompt, params, use_tqdm=False)[0].outputs[0] for prompt in prompts]
    texts, tokens, finished = [""] * len(prompts), [[] for _ in prompts], {}
    with LLM(model, num_gpu_blocks_override=22, **settings) as tight:
        for delta in tight.generate(prompts, params, stream=True):
            texts[delta.prompt_index] += delta.text
            tokens[delta.prompt_index] += delta.token_ids
            if delta.finished is not None:
                finished[delta.prompt_index] = delta.finished.outputs[0]
        assert tight.engine.stats.num_preemptions > 0
    for index, wanted in enumerate(solo):
        assert tokens[index] == finished[index].token_ids == wanted.token_ids
        assert texts[index] == finished[index].text == wanted.text != ""
        assert finished[index].logprobs == wanted.logprobs
