"""The engines under measurement, on a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline import LLM, SamplingParams
from paceline.bench import transformers_engine
from paceline.bench.agreement import sampled_scores
from paceline.bench.engines import PacelineEngine
from paceline.bench.errors import BenchError
from paceline.bench.lineup import Baseline, Contest, load_baseline
from paceline.bench.transformers_engine import TransformersEngine

PROMPTS = [list(b"<Hello>"), list(b"<one two one two one two one>"), list(b"<?>")]
NUM_TOKENS = 16


@pytest.fixture(scope="module")
def baseline(tiny_chat: str) -> Baseline:
    return load_baseline(Contest(tiny_chat, [], {}, "fast", False))


@pytest.fixture(scope="module")
def expected(tiny_chat: str) -> list[list[int]]:
    """Greedy outputs by a plain forward over all tokens, of a model that transformers loaded."""
    model = AutoModelForCausalLM.from_pretrained(tiny_chat)
    outputs = []
    for prompt in PROMPTS:
        ids = list(prompt)
        with torch.inference_mode():
            for _ in range(NUM_TOKENS):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        outputs.append(ids[len(prompt) :])
    return outputs


@pytest.fixture(scope="module")
def llm(tiny_chat: str) -> Iterator[LLM]:
    with LLM(tiny_chat, numerics="exact", max_model_len=128, max_num_seqs=4, proposer="ngram") as llm:
        yield llm


def test_transformers_batch_is_each_prompt_alone(baseline: Baseline, expected: list[list[int]]) -> None:
    engine = TransformersEngine(baseline.loaded, ignore_eos=True)
    run = engine.generate(PROMPTS, NUM_TOKENS)
    assert [request.token_ids for request in run.requests] == expected
    assert run.num_passes == NUM_TOKENS
    assert all(0 < request.ttft_s < run.seconds for request in run.requests)


def test_prompt_lookup_emits_the_same_in_fewer_passes(baseline: Baseline, expected: list[list[int]]) -> None:
    engine = TransformersEngine(baseline.loaded, ignore_eos=True, lookup_tokens=5)
    runs = [engine.generate([prompt], NUM_TOKENS) for prompt in PROMPTS]
    assert [run.requests[0].token_ids for run in runs] == expected
    assert engine.max_batch == 1
    assert sum(run.num_passes for run in runs) < NUM_TOKENS * len(PROMPTS)


def test_outputs_end_with_the_end_token(
    baseline: Baseline, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that end early are cut, and their time is that of their own last token: a second per pass here."""
    seconds = count()
    monkeypatch.setattr(transformers_engine, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))
    end = expected[0][4]
    ending = SimpleNamespace(model=baseline.loaded.model, eos_token_ids=(end,))
    run = TransformersEngine(ending, ignore_eos=False).generate(PROMPTS, NUM_TOKENS)
    cut = [tokens[: tokens.index(end) + 1] if end in tokens else tokens for tokens in expected]
    assert [request.token_ids for request in run.requests] == cut
    assert len({len(tokens) for tokens in cut}) > 1
    assert {(request.ttft_s, request.tpot_s) for request in run.requests} == {(1.0, 1.0)}
    assert run.seconds == max(map(len, cut)) + 1
    alone = TransformersEngine(ending, ignore_eos=False).generate(PROMPTS[:1], NUM_TOKENS)
    assert alone.num_passes == len(cut[0]) < NUM_TOKENS


def test_paceline_counts_drafts_and_passes_of_each_run(llm: LLM, expected: list[list[int]]) -> None:
    engine = PacelineEngine("paceline + ngram", llm, ignore_eos=True)
    run, again = (engine.generate(PROMPTS, NUM_TOKENS) for _ in range(2))
    assert [request.token_ids for request in run.requests] == expected
    assert 0 < run.num_accepted_tokens <= run.num_draft_tokens
    assert run.num_drafts > 0
    assert 0 < run.num_passes < NUM_TOKENS * len(PROMPTS)
    assert all(0 < request.ttft_s < run.seconds for request in run.requests)
    counts = ("num_passes", "num_drafts", "num_draft_tokens", "num_accepted_tokens")
    assert [getattr(again, name) for name in counts] == [getattr(run, name) for name in counts]
    assert 0 < run.verify_time_s < run.seconds


def test_no_run_finds_the_kv_of_another(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even with prefix caching on: the second run of the same prompt computes it again."""
    cached = []
    generate = llm.generate
    monkeypatch.setattr(llm, "generate", lambda *a, **k: cached.extend(found := generate(*a, **k)) or found)
    engine = PacelineEngine("paceline", llm, ignore_eos=True)
    prompt = [1] * 40
    for _ in range(2):
        engine.generate([prompt], 2)
    assert llm.config.enable_prefix_caching
    assert [output.num_cached_tokens for output in cached] == [0, 0]
    again = {"prompt_token_ids": prompt, "cache_salt": "bench run 2"}  # the salt is what keeps them apart
    assert generate([again], SamplingParams(max_tokens=1), use_tqdm=False)[0].num_cached_tokens > 0


def test_a_failed_request_stops_the_benchmark(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "generate", lambda *a, **k: [SimpleNamespace(error="PACELINE-E601: NaN")])
    with pytest.raises(BenchError, match=r"PACELINE-E620: a request failed in slow: PACELINE-E601: NaN"):
        PacelineEngine("slow", llm, ignore_eos=True).generate([[1]], 2)


def test_sampled_scores_are_what_the_sampler_chose_from(llm: LLM, baseline: Baseline) -> None:
    params = SamplingParams(temperature=0.9, seed=5, max_tokens=12, ignore_eos=True)
    run = PacelineEngine("paceline", llm, ignore_eos=True).sample(PROMPTS[:1], [params])
    known = list(PROMPTS[0])
    for token in run.requests[0].token_ids:
        assert int(sampled_scores(baseline.logits(known), len(known), 0.9, 5).argmax()) == token
        known.append(token)
