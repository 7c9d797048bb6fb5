"""NaN ends the request that met it, and no other: not by drafts, not by shared KV, not by the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline import LLM, SamplingParams

NAN = 500
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)
BASE = [(index * 37) % 400 for index in range(40)]


def tokens_of(outputs: list[Any]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("drafting", [False, True])
def test_only_that_request_ends_and_keeps_what_was_chosen_before(
    harness: Callable[..., Any], fake: Any, drafting: bool
) -> None:
    engine = harness(draft=fake.right_drafts if drafting else None)
    truth = fake.continuation([1, 2], 8)
    engine.runner.nan_tokens = {truth[4]}
    at = truth.index(truth[4])
    engine.add([1, 2], "bad", max_tokens=8, logprobs=0)
    engine.add([truth[4], 3], "good", max_tokens=1)
    outputs = engine.run()
    completion = outputs["bad"].outputs[0]

    assert completion.token_ids == truth[: at + 1] and completion.finish_reason == "error"
    assert len(completion.logprobs) == at + 1
    assert outputs["bad"].error == (
        'PACELINE-E601: request "bad" ended: the model gave NaN or no finite score for the token at position '
        f"{3 + at}; " + outputs["bad"].error.partition("; ")[2]
    )
    assert "check the checkpoint and the dtype" in outputs["bad"].error
    assert outputs["good"].outputs[0].finish_reason == "length" and outputs["good"].error is None
    assert engine.kv.num_used == 0
    assert outputs["bad"].metrics.num_generated_tokens == at + 1


def test_nothing_was_chosen(harness: Callable[..., Any]) -> None:
    engine = harness()
    engine.runner.nan_tokens = {5}
    engine.add([1, 5], "r")
    output = engine.run()["r"]
    assert output.outputs[0].token_ids == [] and output.outputs[0].finish_reason == "error"
    assert output.metrics.first_token_time_s is None and "r" not in engine.emitted


def test_a_stop_before_it_is_a_stop(harness: Callable[..., Any], fake: Any) -> None:
    truth = fake.continuation([1, 2], 4)
    engine = harness(draft=fake.right_drafts)
    engine.runner.nan_tokens = {truth[2]} - set(truth[:2])
    engine.add([1, 2], "r", max_tokens=8, stop_token_ids=[truth[1]])
    assert engine.run()["r"].outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("chunk", [64, 128], ids=["in chunks", "at once"])
def test_blocks_that_a_nan_may_have_spoilt_are_never_shared(
    tiny: Callable[..., str], numerics: str, chunk: int
) -> None:
    """Attention gives what a row does not see the weight 0, and 0 * NaN is NaN: the rows before it are spoilt too."""
    options: dict[str, Any] = {"numerics": numerics, "max_model_len": 128, "max_num_batched_tokens": chunk}
    with LLM(tiny(nan_token=NAN), **options) as llm:
        [clean] = tokens_of(llm.generate({"prompt_token_ids": BASE}, GREEDY))
        llm.engine.kv.reset()
        [bad] = llm.generate({"prompt_token_ids": [*BASE, NAN, *[3] * 50]}, GREEDY)
        assert bad.outputs[0].finish_reason == "error" and llm.engine.kv.num_cached == 0
        mates = [{"prompt_token_ids": prompt} for prompt in (BASE, [9] * 90, [*BASE, NAN], BASE[:20])]
        outputs = llm.generate(mates, GREEDY)
        assert [output.outputs[0].finish_reason for output in outputs] == ["length", "length", "error", "length"]
        assert outputs[0].outputs[0].token_ids == clean
        assert llm.engine.kv.num_used == 0


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("position", [0, 2])
def test_a_hostile_draft_cannot_end_a_request(
    tiny: Callable[..., str], test_plugins: Any, numerics: str, position: int
) -> None:
    prompt = {"prompt_token_ids": BASE}
    with LLM(tiny(nan_token=NAN), numerics=numerics, max_model_len=128) as llm:
        [clean] = tokens_of(llm.generate(prompt, GREEDY))
    hostile = [[*BASE, *clean[: at + position], NAN, 1, 1] for at in range(len(clean))]
    options: dict[str, Any] = {"proposer": "engine_probes:recorder", "proposer_options": {"truth": hostile}}
    with LLM(tiny(nan_token=NAN), numerics=numerics, max_model_len=128, **options) as llm:
        [output] = llm.generate(prompt, GREEDY)
        [again] = llm.generate(prompt, GREEDY)
    assert output.metrics.num_draft_tokens > position and output.error is None
    assert output.outputs[0].token_ids == again.outputs[0].token_ids == clean
