"""transformers' continuous batching under measurement, on a tiny model."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.bench import continuous_batching
from paceline.bench.continuous_batching import MAX_BATCH_TOKENS, ContinuousBatchingEngine
from paceline.bench.errors import BenchError, ContinuousBatchingError
from paceline.bench.lineup import Baseline, Contest, load_baseline
from paceline.bench.transformers_engine import TransformersEngine
from paceline.model.loading import LoadedModel

PROMPTS = [list(b"<Hello>"), list(b"<one two one two one two one>"), list(b"<?>")]
NUM_TOKENS = 12
SIZE = {"longest": 64, "max_requests": 3}


@pytest.fixture(scope="module")
def baseline(tiny_chat: str) -> Baseline:
    return load_baseline(Contest(tiny_chat, [], {}, "fast", False))


@pytest.fixture
def loaded(baseline: Baseline) -> Iterator[LoadedModel]:
    """The model, without a cache that a test left."""
    yield baseline.loaded
    baseline.loaded.model.destroy_cached_continuous_batching_manager()


def outputs(engine: Any, num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    return [request.token_ids for request in engine.generate(PROMPTS, num_tokens).requests]


def test_outputs_are_generate_s_and_the_model_is_as_it_was(loaded: LoadedModel) -> None:
    plain = TransformersEngine(loaded, ignore_eos=True)
    expected, threads = outputs(plain), threading.active_count()
    engine = ContinuousBatchingEngine(loaded, ignore_eos=True, **SIZE)
    for _ in range(2):
        assert outputs(engine) == expected
        assert loaded.model.config._attn_implementation == "sdpa"
        assert outputs(plain) == expected
    assert threading.active_count() == threads
    engine.close()
    assert not hasattr(loaded.model, "_cached_continuous_batching_manager")
    assert outputs(plain) == expected


def test_requests_run_together_and_are_timed_each(loaded: LoadedModel) -> None:
    """Passes of all three: a pass for the prompts, which brings a token each, then one per token."""
    run = ContinuousBatchingEngine(loaded, ignore_eos=True, **SIZE).generate(PROMPTS, NUM_TOKENS)
    assert run.num_passes == NUM_TOKENS
    for request in run.requests:
        assert 0 < request.ttft_s < run.seconds
        assert request.ttft_s + request.tpot_s * (NUM_TOKENS - 1) <= run.seconds


def test_outputs_end_with_the_end_token(loaded: LoadedModel) -> None:
    end = outputs(TransformersEngine(loaded, ignore_eos=True))[0][4]
    ending = SimpleNamespace(model=loaded.model, name=loaded.name, eos_token_ids=(end,))
    expected = outputs(TransformersEngine(ending, ignore_eos=False))
    assert len({len(tokens) for tokens in expected}) > 1
    assert outputs(ContinuousBatchingEngine(ending, ignore_eos=False, **SIZE)) == expected
    past_the_end = outputs(ContinuousBatchingEngine(ending, ignore_eos=True, **SIZE))
    assert {len(tokens) for tokens in past_the_end} == {NUM_TOKENS}


def test_its_cache_holds_every_request_and_no_more(loaded: LoadedModel) -> None:
    """Left alone it takes most of the machine's memory."""
    engine = ContinuousBatchingEngine(loaded, ignore_eos=True, longest=300, max_requests=5)
    cache = loaded.model._cached_continuous_batching_manager.batch_processor.cache
    assert cache.num_blocks * engine.facts["page_size"] == 5 * 512
    assert cache.max_batch_tokens == engine.facts["max_batch_tokens"] == 1500
    assert engine.facts["max_requests_per_batch"] == 5 and engine.facts["allow_block_sharing"] is False
    larger = ContinuousBatchingEngine(loaded, ignore_eos=True, longest=5000, max_requests=1)
    assert larger.facts["max_batch_tokens"] == MAX_BATCH_TOKENS
    cache = loaded.model._cached_continuous_batching_manager.batch_processor.cache
    assert cache.num_blocks * larger.facts["page_size"] == 5120


def test_eager_attention_comes_back_after_every_run(loaded: LoadedModel) -> None:
    loaded.model.set_attn_implementation("eager")
    try:
        expected = outputs(TransformersEngine(loaded, ignore_eos=True))
        engine = ContinuousBatchingEngine(loaded, ignore_eos=True, **SIZE)
        assert outputs(engine) == expected
        assert loaded.model.config._attn_implementation == "eager"
    finally:
        loaded.model.set_attn_implementation("sdpa")


def test_a_model_that_it_cannot_run_is_refused_and_left_as_it_was(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has no place for a layer of that type; transformers leaves the model in paged attention there."""
    loaded.model.set_attn_implementation("eager")
    monkeypatch.setattr(loaded.model.config, "layer_types", ["full_attention", "linear_attention"], raising=False)
    try:
        message = (
            r"E621: transformers' continuous batching cannot run \".*tiny_chat.*\" \(LlamaForCausalLM\): .*Error: "
            r".*linear_attention.*; leave it out with --baseline generate or --baseline prompt-lookup"
        )
        with pytest.raises(ContinuousBatchingError, match=message):
            ContinuousBatchingEngine(loaded, ignore_eos=True, **SIZE)
        assert loaded.model.config._attn_implementation == "eager"
    finally:
        loaded.model.set_attn_implementation("sdpa")


def test_a_failed_request_stops_the_benchmark(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ContinuousBatchingEngine(loaded, ignore_eos=True, **SIZE)

    def fails(*arguments: Any, **keywords: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(loaded.model, "forward", fails)
    with pytest.raises(BenchError, match="E620: a request failed in transformers continuous batching: no such kernel"):
        engine.generate(PROMPTS, 2)
    with pytest.raises(ContinuousBatchingError, match="no such kernel"):
        ContinuousBatchingEngine(loaded, ignore_eos=True, **SIZE)


def test_settings_go_by_what_the_release_calls_them(monkeypatch):
    @dataclasses.dataclass
    class Earlier:
        block_size: int
        num_blocks: int
        max_batch_tokens: int
        max_requests_per_batch: int
        safety_margin: float
        allow_block_sharing: bool

    monkeypatch.setattr(continuous_batching, "ContinuousBatchingConfig", Earlier)
    assert continuous_batching._sized(300, 4) == Earlier(256, 8, 1200, 4, 0.0, False)
