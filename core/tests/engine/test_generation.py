"""``LLM``: seeds, stops, limits, log-probabilities, engines side by side, cache identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.config import ConfigError
from paceline.engine.errors import EngineError, RequestError

PROMPT = {"prompt_token_ids": [11, 12, 13, 14, 15]}


def ids_of(outputs: list[Any]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def hot(seed: int | None = None, **params: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "seed": seed, "max_tokens": 30, **params})


@pytest.fixture(scope="module")
def llm(tiny: Callable[..., str]) -> Iterator[LLM]:
    with LLM(tiny(), numerics="exact", max_model_len=128) as llm:
        yield llm


# -- seeds -----------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_tokens_whatever_the_batch_mates(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=30)
    [alone_greedy] = ids_of(llm.generate(PROMPT, greedy))
    runs = [ids_of(llm.generate(PROMPT, hot(42)))[0] for _ in range(2)]
    mates = [hot(seed) for seed in (None, 1, 1, 2, None)]
    for place in (0, 5):
        params = [*mates[:place], hot(42), *mates[place:], greedy]
        tokens = ids_of(llm.generate([PROMPT] * len(params), params))
        runs.append(tokens[place])
        assert tokens[-1] == alone_greedy
        equal = [tokens[i] for i, own in enumerate(params) if own.seed == 1]
        assert equal[0] == equal[1]
        assert len({tuple(t) for t in tokens}) == len(params) - 1, "all others differ"
    assert all(run == runs[0] for run in runs)


def test_unseeded_runs_vary(llm: LLM) -> None:
    together = ids_of(llm.generate([PROMPT] * 10, hot()))
    apart = [ids_of(llm.generate(PROMPT, hot()))[0] for _ in range(10)]
    assert len({tuple(tokens) for tokens in together + apart}) >= 15


def test_the_engines_seed_repeats_the_unseeded(tiny: Callable[..., str]) -> None:
    def run(seed: int | None) -> list[list[int]]:
        with LLM(tiny(), numerics="exact", max_model_len=64, seed=seed) as llm:
            return ids_of(llm.generate([PROMPT] * 3, hot())) + ids_of(llm.generate([PROMPT], hot()))

    first = run(7)
    assert first == run(7)
    assert len({tuple(tokens) for tokens in first}) == 4
    assert not {tuple(tokens) for tokens in first} & {tuple(tokens) for tokens in run(8) + run(None)}


# -- ends ------------------------------------------------------------------------------------------------------------

COUNT_UP = {token: token + 1 for token in range(63)}


@pytest.fixture(scope="module")
def counting(chain_model: Callable[..., str]) -> Iterator[LLM]:
    """Emits t + 1 after t; 20 is the end token, and where it may not come 40 does."""
    with LLM(chain_model(COUNT_UP, {19: 40}, eos_token_id=20), max_model_len=128) as llm:
        yield llm


@pytest.mark.parametrize(
    ("params", "tokens", "reason", "stop_reason"),
    [
        ({}, [17, 18, 19, 20], "stop", None),
        ({"max_tokens": 2}, [17, 18], "length", None),
        ({"max_tokens": 4}, [17, 18, 19, 20], "stop", None),
        ({"stop_token_ids": [18, 30]}, [17, 18], "stop", 18),
        ({"stop_token_ids": [20]}, [17, 18, 19, 20], "stop", 20),
        ({"ignore_eos": True, "max_tokens": 6}, [17, 18, 19, 20, 21, 22], "length", None),
        ({"ignore_eos": True, "stop_token_ids": [21]}, [17, 18, 19, 20, 21], "stop", 21),
        ({"min_tokens": 3}, [17, 18, 19, 20], "stop", None),
        ({"min_tokens": 4, "max_tokens": 6}, [17, 18, 19, 40, 41, 42], "length", None),
        ({"min_tokens": 5, "stop_token_ids": [42]}, [17, 18, 19, 40, 41, 42], "stop", 42),
        ({"min_tokens": 6, "max_tokens": 6, "ignore_eos": True}, [17, 18, 19, 20, 21, 22], "length", None),
    ],
)
def test_where_an_output_ends(
    counting: LLM, params: dict[str, Any], tokens: list[int], reason: str, stop_reason: int | None
) -> None:
    wanted = SamplingParams(**{"temperature": 0.0, "max_tokens": 20, **params})
    [output] = counting.generate({"prompt_token_ids": [16]}, wanted)
    completion = output.outputs[0]
    assert (completion.token_ids, completion.finish_reason, completion.stop_reason) == (tokens, reason, stop_reason)
    assert output.metrics.num_generated_tokens == len(tokens)


def test_it_ends_with_the_model(counting: LLM) -> None:
    [output] = counting.generate({"prompt_token_ids": [30] * 120}, SamplingParams(temperature=0.0, max_tokens=None))
    assert output.outputs[0].token_ids == list(range(31, 39)) and output.outputs[0].finish_reason == "length"


# -- log-probabilities -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.3, "seed": 3, "top_k": 5}])
def test_logprobs_are_the_models_own(llm: LLM, tiny: Callable[..., str], params: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM

    mates = [{"prompt_token_ids": [7, 7]}, {"prompt_token_ids": [9]}]
    *_, output = llm.generate([*mates, PROMPT], SamplingParams(logprobs=5, max_tokens=8, **params))
    tokens = output.outputs[0].token_ids
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(tiny())(
            torch.tensor([PROMPT["prompt_token_ids"] + tokens])
        ).logits
    wanted = logits[0, 4:-1].log_softmax(-1)
    entries = output.outputs[0].logprobs
    assert entries is not None and len(entries) == len(tokens)
    for row, token, entry in zip(wanted, tokens, entries, strict=True):
        top = row.topk(5)
        assert {i for i, value in entry.items() if value.rank is not None} == set(top.indices.tolist())
        assert entry.keys() == {token, *top.indices.tolist()}
        assert all(abs(value.logprob - row[i]) < 1e-4 for i, value in entry.items())
        ranked = sorted((value.rank, i) for i, value in entry.items() if value.rank is not None)
        assert [i for _, i in ranked] == top.indices.tolist() and ranked[0][0] == 1


def test_logprobs_zero_gives_the_emitted_token_alone(llm: LLM) -> None:
    [output] = llm.generate(PROMPT, SamplingParams(temperature=0.0, logprobs=0, max_tokens=3))
    assert [list(entry) for entry in output.outputs[0].logprobs] == [[token] for token in output.outputs[0].token_ids]
    [output] = llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=3))
    assert output.outputs[0].logprobs is None


# -- the front end ---------------------------------------------------------------------------------------------------


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [{"prompt_token_ids": [token] * 3} for token in range(6)]
    params = [SamplingParams(temperature=0.0, max_tokens=9 - index) for index in range(6)]
    outputs = llm.generate(prompts, params)
    assert [output.prompt_token_ids for output in outputs] == [prompt["prompt_token_ids"] for prompt in prompts]
    assert [len(tokens) for tokens in ids_of(outputs)] == [9, 8, 7, 6, 5, 4]
    assert llm.generate([]) == []


def test_metrics(llm: LLM) -> None:
    [output] = llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=4))
    metrics = output.metrics
    times = [metrics.queue_time_s, metrics.ttft_s, metrics.tpot_s, metrics.verify_time_s]
    assert all(time is not None and time >= 0 for time in times)
    assert (
        metrics.arrival_time_s
        <= metrics.first_scheduled_time_s
        <= metrics.first_token_time_s
        <= metrics.finished_time_s
    )
    assert (metrics.num_drafts, metrics.mean_acceptance_length) == (0, None)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([SamplingParams()], "sampling_params has 1 entries for 2 prompts; give one or as many"),
        ({"temperature": 0}, "sampling_params is a dict; give SamplingParams or a list of them"),
        (0.5, "sampling_params is a float; give SamplingParams or a list of them"),
        ([SamplingParams(), {"temperature": 0}], "sampling_params 1 is a dict; give SamplingParams"),
    ],
)
def test_wrong_sampling_params(llm: LLM, params: Any, message: str) -> None:
    with pytest.raises(RequestError) as error:
        llm.generate([PROMPT, PROMPT], params)
    assert error.value.message == message


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([PROMPT, {"prompt_token_ids": [512]}], r"prompt token 512 at position 0 is outside the vocabulary of 512"),
        ([PROMPT, {"prompt_token_ids": []}], "the prompt is empty"),
        ([PROMPT, "text"], 'has no tokenizer; give "prompt_token_ids" instead of text'),
        ([PROMPT, {"prompt_token_ids": [1] * 128}], "the prompt has 128 tokens, and max_model_len is 128"),
    ],
)
def test_one_bad_prompt_refuses_the_call_and_leaves_nothing(llm: LLM, prompts: Any, message: str) -> None:
    num_steps = llm.engine.stats.num_steps
    with pytest.raises(RequestError, match=message):
        llm.generate(prompts, SamplingParams(max_tokens=2))
    assert not llm.engine.has_requests and llm.engine.stats.num_steps == num_steps
    assert ids_of(llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=1)))


def test_wrong_options(tiny: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match='"max_model_length" = 5; did you mean "max_model_len"'):
        LLM(tiny(), max_model_length=5)
    with pytest.raises(EngineError, match=r"max_model_len is 600, and .* was made for 512 positions; use at most 512"):
        LLM(tiny(), max_model_len=600)


def test_plugins_are_listed_in_their_order(tiny: Callable[..., str], test_plugins: Any) -> None:
    with LLM(tiny(), observers=["engine_probes:watching"], proposer="engine_probes:recorder", max_model_len=32) as llm:
        lines = llm.plugins
    assert [line.split(" (")[0] for line in lines] == [
        "eviction policy lru",
        "speculation controller fixed",
        "proposer engine_probes:recorder",
        "observer engine_probes:watching",
    ]
    assert "proposer engine_probes:recorder (paceline-engine-probes 0.3)" in lines


def test_defaults_come_from_the_generation_config(chain_model: Callable[..., str]) -> None:
    from transformers import GenerationConfig

    path = chain_model(COUNT_UP)
    GenerationConfig(do_sample=True, temperature=0.6, top_p=0.95, top_k=20).save_pretrained(path)
    with LLM(path, max_model_len=32) as llm:
        params = llm.get_default_sampling_params()
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.6, 0.95, 20, 0.0)


# -- engines side by side --------------------------------------------------------------------------------------------


def test_two_engines_in_one_process_do_not_mix(tiny: Callable[..., str]) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    alone = []
    for seed in (0, 1):
        with LLM(tiny(seed=seed), max_model_len=64) as llm:
            alone += ids_of(llm.generate(PROMPT, greedy))
    with (
        LLM(tiny(), max_model_len=64, block_size=4) as first,
        LLM(tiny(seed=1), max_model_len=32, numerics="exact") as second,
    ):
        from paceline.engine.prompts import parse_prompt

        outputs: dict[int, Any] = {}
        engines = [first, second]
        for llm in engines:
            llm.add_request(parse_prompt(PROMPT), greedy)
        while any(llm.engine.has_requests for llm in engines):
            for index, llm in enumerate(engines):
                outputs.update((index, output) for output in llm.engine.step().finished)
        assert ids_of([outputs[0], outputs[1]]) == alone
        assert alone[0] != alone[1]


# -- identity --------------------------------------------------------------------------------------------------------


def test_a_contributor_keeps_tenants_apart(tiny: Callable[..., str], test_plugins: Any) -> None:
    prompt = {"prompt_token_ids": list(range(40))}
    tenants: list[dict[str, Any]] = [{}, {"metadata": {"tenant": "a"}}, {"metadata": {"tenant": "b"}}]
    with LLM(tiny(), numerics="exact", max_model_len=64, cache_identity=["engine_probes:tenant"]) as llm:
        outputs = [
            llm.generate(prompt | tenant, SamplingParams(temperature=0.0, max_tokens=4))[0] for tenant in tenants * 2
        ]
    assert [output.num_cached_tokens for output in outputs] == [0, 0, 0, 32, 32, 32]
    assert len({tuple(tokens) for tokens in ids_of(outputs)}) == 1


def test_without_it_metadata_shares(tiny: Callable[..., str]) -> None:
    prompt = {"prompt_token_ids": list(range(40))}
    with LLM(tiny(), max_model_len=64) as llm:
        cached = [
            llm.generate(prompt | {"metadata": {"tenant": tenant}}, SamplingParams(max_tokens=1))[0].num_cached_tokens
            for tenant in "ab"
        ]
    assert cached == [0, 32]
