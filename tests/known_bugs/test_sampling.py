"""Failures of sampling parameters: penalties and bans under speculation, scores of the prompt, scores in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import LLM, RequestOutput, SamplingParams

Serve = Callable[..., list[RequestOutput]]

NUM_TOKENS = 24
CYCLE = {token: (token + 1) % 3 for token in range(3)}
SECOND_CHOICE = {0: 10, 1: 11, 2: 12, 10: 1, 11: 2, 12: 0}
PENALTIES: dict[str, dict[str, float]] = {
    "frequency": {"frequency_penalty": 2.0},
    "negative_frequency": {"frequency_penalty": -2.0},
    "presence": {"presence_penalty": 1.5},
    "repetition": {"repetition_penalty": 1.3},
    "together": {"frequency_penalty": 2.0, "presence_penalty": 1.5, "repetition_penalty": 1.3},
}
NONE = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
PROPOSERS = ("ngram", "unpenalised", "draft_model", "oracle", "tree")


def ids(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def accepted(outputs: Sequence[RequestOutput]) -> int:
    return sum(output.metrics.num_accepted_tokens for output in outputs)


def penalised(path: str, prompt: list[int], penalties: Mapping[str, float]) -> list[int]:
    """Greedy ids by a plain transformers forward at each step, the penalties written out."""
    import torch
    from transformers import AutoModelForCausalLM

    model, known = AutoModelForCausalLM.from_pretrained(path), list(prompt)
    strength = NONE | penalties
    for _ in range(NUM_TOKENS):
        with torch.inference_mode():
            scores = model(torch.tensor([known])).logits[0, -1].tolist()
        for token in set(known):
            factor = strength["repetition_penalty"]
            scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
            count = known[len(prompt) :].count(token)
            scores[token] -= strength["frequency_penalty"] * count + strength["presence_penalty"] * (count > 0)
        known.append(int(np.argmax(scores)))
    return known[len(prompt) :]


@pytest.fixture(scope="module")
def penalty_models(tiny: Callable[..., str], script: Callable[..., str]) -> dict[str, tuple[str, list[list[int]]]]:
    """Models and prompts: a cycle of three tokens with a second choice each, and random weights."""
    random = np.random.default_rng(3)
    prompts = [[7] * 20, random.integers(0, 512, 6).tolist() * 3, random.integers(0, 512, 11).tolist()]
    return {
        "cycle": (script({**CYCLE, 10: 0, 11: 1, 12: 2}, SECOND_CHOICE), [[0], [1, 2, 0], [5, 2]]),
        "tiny": (tiny(), prompts),
    }


@pytest.fixture(scope="module")
def expected(penalty_models: dict[str, tuple[str, list[list[int]]]]) -> Callable[[str, str], list[list[int]]]:
    made: dict[tuple[str, str], list[list[int]]] = {}

    def continuations(model: str, setting: str) -> list[list[int]]:
        if (model, setting) not in made:
            path, prompts = penalty_models[model]
            made[model, setting] = [penalised(path, prompt, PENALTIES.get(setting, {})) for prompt in prompts]
        return made[model, setting]

    return continuations


@pytest.fixture(scope="module")
def penalised_engine(
    engines: Callable[..., LLM],
    penalty_models: dict[str, tuple[str, list[list[int]]]],
    expected: Callable[[str, str], list[list[int]]],
) -> Callable[[str, str, str], LLM]:
    """``(model, setting, proposer) -> LLM``; the probes are told the penalised and the unpenalised continuations."""

    def build(model: str, setting: str, proposer: str) -> LLM:
        path, prompts = penalty_models[model]
        truth = [p + o for s in (setting, "none") for p, o in zip(prompts, expected(model, s), strict=True)]
        options: dict[str, dict[str, Any]] = {
            "none": {},
            "ngram": {"proposer": "ngram"},
            "unpenalised": {"proposer": "draft_model", "proposer_options": {"model": "target", "sampling": "greedy"}},
            "draft_model": {"proposer": "draft_model", "proposer_options": {"model": "target"}},
            "oracle": {"proposer": "probes:oracle", "proposer_options": {"truth": truth}},
            "tree": {"proposer": "probes:tree", "proposer_options": {"truth": truth}},
        }
        length = {} if proposer == "none" else {"num_speculative_tokens": 6}
        return engines(path, numerics="exact", **length, **options[proposer])

    return build


@pytest.mark.parametrize("setting", PENALTIES)
@pytest.mark.parametrize("model", ["cycle", "tiny"])
def test_penalties_are_those_of_a_loop_over_the_output(
    penalised_engine: Callable[[str, str, str], LLM],
    penalty_models: dict[str, tuple[str, list[list[int]]]],
    expected: Callable[[str, str], list[list[int]]],
    serve: Serve,
    model: str,
    setting: str,
) -> None:
    """B003: without speculation."""
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, **PENALTIES[setting])
    outputs = serve(penalised_engine(model, setting, "none"), penalty_models[model][1], params)
    assert ids(outputs) == expected(model, setting)
    if setting in ("frequency", "together") or (model == "tiny" and setting != "negative_frequency"):
        assert ids(outputs) != expected(model, "none")


@pytest.mark.parametrize("setting", PENALTIES)
@pytest.mark.parametrize("model", ["cycle", "tiny"])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_penalties_count_the_drafts_before_each_row(
    penalised_engine: Callable[[str, str, str], LLM],
    penalty_models: dict[str, tuple[str, list[list[int]]]],
    expected: Callable[[str, str], list[list[int]]],
    serve: Serve,
    proposer: str,
    model: str,
    setting: str,
) -> None:
    """B003: with drafts, also such as the penalties forbid; a mate without penalties shares the batch."""
    llm, prompts = penalised_engine(model, setting, proposer), penalty_models[model][1]
    greedy = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    params = [greedy.model_copy(update=PENALTIES[setting])] * len(prompts)
    outputs = serve(llm, [*prompts, prompts[0]], [*params, greedy])
    assert ids(outputs) == [*expected(model, setting), expected(model, "none")[0]]
    assert sum(output.metrics.num_draft_tokens for output in outputs[:-1]) > 0
    if proposer in ("draft_model", "oracle", "tree"):
        assert accepted(outputs[:-1]) > 0
    if proposer == "draft_model":
        assert accepted(outputs) == sum(output.metrics.num_draft_tokens for output in outputs)


# After 0 come 1 to 6 and then the end token, at output index 6; if it is banned, 20 comes and after it the end again.
END = 7
COUNTING = {**{token: token + 1 for token in range(7)}, 20: END, 21: END, 22: END, 30: 31, 31: 32, 32: 30}
INSTEAD = {6: 20, 20: 21, 21: 22}
BY_MIN_TOKENS = {
    5: [1, 2, 3, 4, 5, 6, END],
    6: [1, 2, 3, 4, 5, 6, END],
    7: [1, 2, 3, 4, 5, 6, 20, END],
    8: [1, 2, 3, 4, 5, 6, 20, 21, END],
}


@pytest.fixture(scope="module")
def ending(script: Callable[..., str]) -> str:
    return script(COUNTING, INSTEAD, eos_token_id=END)


@pytest.mark.parametrize("min_tokens", BY_MIN_TOKENS)
@pytest.mark.parametrize("drafts", ["right", "early_end", "never_end", "none"])
@pytest.mark.parametrize("probe", ["probes:empty", "probes:tree"])
def test_the_end_token_is_banned_exactly_as_long_as_min_tokens_says(
    ending: str, engines: Callable[..., LLM], serve: Serve, min_tokens: int, drafts: str, probe: str
) -> None:
    """B005: of the requests of a batch, those with even ids get no drafts from the probe "empty"."""
    wanted = BY_MIN_TOKENS[min_tokens]
    sequences = {
        "right": [0, *wanted, END],
        "early_end": [0, 1, 2, 3, 4, 5, 6, END, END, END],
        "never_end": [0, 1, 2, 3, 4, 5, 6, 20, 21, 22],
        "none": [0],
    }
    options = {"truth": [sequences[drafts], [30, *[31, 32, 30] * 5]]}
    llm = engines(ending, proposer=probe, proposer_options=options, num_speculative_tokens=4)
    params = SamplingParams(temperature=0.0, max_tokens=12, min_tokens=min_tokens)
    free = params.model_copy(update={"min_tokens": 0})
    outputs = serve(llm, [[0], [30], [0], [0], [30]], [params, free, params, params, free])
    assert ids(outputs) == [wanted, [31, 32, 30] * 4, wanted, wanted, [31, 32, 30] * 4]
    assert [output.outputs[0].finish_reason for output in outputs] == ["stop", "length", "stop", "stop", "length"]
    drafted = [output.metrics.num_draft_tokens for output in outputs]
    assert sum(drafted) > 0
    assert probe != "probes:empty" or 0 in drafted


SCORED = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=3)
PLAIN = SamplingParams(temperature=0.0, max_tokens=4)
SCORING: dict[str, dict[str, Any]] = {
    "roomy": {},
    "chunked": {"max_num_batched_tokens": 24, "max_num_seqs": 4},
    "features": {"proposer": "probes:features", "max_num_batched_tokens": 24, "max_num_seqs": 4},
    "draft_model": {"proposer": "draft_model", "proposer_options": {"model": "target"}},
}


def scored_prompts() -> tuple[list[int], list[int]]:
    """One of 70 tokens, and the same with 20 more."""
    tokens = np.random.default_rng(25).integers(0, 512, 90).tolist()
    return tokens[:70], tokens


@pytest.mark.parametrize("setting", SCORING)
@pytest.mark.parametrize("order", ["plain_first", "scored_first", "longer_first", "at_once"])
def test_scores_of_the_prompt_do_not_depend_on_what_is_cached(
    tiny: Callable[..., str], engines: Callable[..., LLM], serve: Serve, setting: str, order: str
) -> None:
    """B025."""
    short, long = scored_prompts()
    llm = engines(tiny(), **SCORING[setting])
    runs = {
        "plain_first": [[(short, PLAIN)], [(short, SCORED)], [(long, SCORED)]],
        "scored_first": [[(short, SCORED)], [(long, SCORED)], [(short, PLAIN)]],
        "longer_first": [[(long, PLAIN)], [(long, SCORED)], [(short, SCORED)]],
        "at_once": [[(short, PLAIN)], [(short, SCORED), (long, SCORED), (short, PLAIN), (short, SCORED)]],
    }
    served = [output for run in runs[order] for output in serve(llm, *map(list, zip(*run, strict=True)))]
    asked = [params for run in runs[order] for _, params in run]
    for output, params in zip(served, asked, strict=True):
        if params is SCORED:
            assert output.num_cached_tokens == 0
            check_prompt_scores(tiny(), output)
        else:
            assert output.prompt_logprobs is None
    if order == "scored_first":
        assert served[-1].num_cached_tokens >= 64, "what a scored prompt computed is there for others"


def check_prompt_scores(path: str, output: RequestOutput) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    tokens, entries = output.prompt_token_ids, output.prompt_logprobs
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(path)(torch.tensor([tokens])).logits[0]
    expected = logits.double().log_softmax(-1)
    assert entries is not None and entries[0] is None
    assert len(entries) == len(tokens)
    for token, entry, row in zip(tokens[1:], entries[1:], expected, strict=False):
        best = row.topk(3).indices.tolist()
        assert entry is not None and set(entry) == {token, *best}
        assert max(abs(value.logprob - float(row[t])) for t, value in entry.items()) <= 1e-4


def test_scores_of_the_prompt_survive_a_preemption(tiny: Callable[..., str], engines: Callable[..., LLM]) -> None:
    """B025: a long prompt in chunks is given up before all of it is scored."""
    short, long = scored_prompts()
    llm = engines(tiny(), num_gpu_blocks_override=18, block_size=8, max_num_batched_tokens=4, max_num_seqs=2)
    params = [SamplingParams(temperature=0.0, max_tokens=60), SCORED]
    outputs = llm.generate([{"prompt_token_ids": p} for p in (short[:30], long)], params, use_tqdm=False)
    check_prompt_scores(tiny(), outputs[1])
    assert llm.engine.stats.num_preemptions > 0


def strict_json(outputs: Sequence[RequestOutput]) -> Any:
    """The scores as a body, by way of a strict writer and a strict parser."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    def row(entries: Mapping[int, Any] | None) -> Any:
        return None if entries is None else [[token, entry.logprob, entry.rank] for token, entry in entries.items()]

    body = [
        {
            "tokens": output.outputs[0].token_ids,
            "cumulative": output.outputs[0].cumulative_logprob,
            "output": [row(entries) for entries in output.outputs[0].logprobs or ()],
            "prompt": [row(entries) for entries in output.prompt_logprobs or ()],
        }
        for output in outputs
    ]
    return json.loads(json.dumps(body, allow_nan=False), parse_constant=refuse)


@pytest.fixture(scope="module")
def half_dead(script: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that counts, and after whose first tokens the ids from 40 on have no probability left."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(script({token: token + 1 for token in range(30)}))
    with torch.no_grad():
        model.lm_head.weight[40:, :10] = -5000.0
    path: Path = tmp_path_factory.mktemp("half_dead")
    model.save_pretrained(path)
    return str(path)


@pytest.mark.parametrize(
    "given",
    [
        {"top_k": 1},
        {"logit_bias": {token: -100.0 for token in range(64) if token not in (3, 50)}},
        {"top_k": 1, "allowed_token_ids": [41, 42]},
        {"temperature": 0.0, "bad_words": []},
    ],
    ids=["top_k", "bias", "allowed", "greedy"],
)
@pytest.mark.parametrize("proposer", [None, "draft_model"])
def test_scores_are_finite_numbers_in_order(
    half_dead: str, engines: Callable[..., LLM], serve: Serve, given: dict[str, Any], proposer: str | None
) -> None:
    """B065: what has no probability shows the floor."""
    options = {"proposer": proposer, "proposer_options": {"model": "target"}} if proposer else {}
    llm = engines(half_dead, **options)
    params = SamplingParams(**{"seed": 1, "max_tokens": 8, "logprobs": 20, "prompt_logprobs": 20, **given})
    outputs = serve(llm, [[1, 2, 50, 3], [20, 21]], params)
    floors = 0
    for body in strict_json(outputs):
        assert len(body["output"]) == 8
        own = [
            dict((t, v) for t, v, _ in row)[token] for token, row in zip(body["tokens"], body["output"], strict=True)
        ]
        assert body["cumulative"] == pytest.approx(sum(own))
        assert body["prompt"][0] is None
        for row in body["output"] + body["prompt"][1:]:
            ranked = [value for _, value, rank in row if rank is not None]
            assert len(ranked) == 20 and ranked == sorted(ranked, reverse=True)
            floors += sum(value == -9999.0 for _, value, _ in row)
    assert floors > 0
