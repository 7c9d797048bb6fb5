"""Parameters that edit logits, through the engine: refusals, and what a row costs and sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline import LLM, SamplingParams
from paceline.engine.edit_table import EditTable
from paceline.engine.errors import RequestError
from paceline.sampling.errors import BeamSearchError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"logit_bias": {99: 1.0}}, 'request "r": logit_bias id 99 is outside the vocabulary of 16'),
        ({"allowed_token_ids": [1, 16]}, 'request "r": allowed token id 16 is outside the vocabulary of 16'),
        ({"bad_words": ["x"]}, "bad_words are texts, and the model has no tokenizer to read them; ban token ids with"),
        (
            {"allowed_token_ids": [3], "min_tokens": 2, "stop_token_ids": [3]},
            "of its 1 allowed_token_ids none is left: bad_words bans them, or they are stop tokens, which min_tokens",
        ),
    ],
)
def test_what_can_never_be_served_is_refused(harness: Callable[..., Any], given: dict[str, Any], message: str) -> None:
    engine = harness()
    with pytest.raises(RequestError) as caught:
        engine.add([1], "r", **given)
    assert message in str(caught.value)
    assert not engine.engine.has_requests


def test_rows_without_edits_pay_nothing(harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_allowed", "_banned", "_bias", "_write_mask"):
        method = getattr(EditTable, name)
        monkeypatch.setattr(EditTable, name, method if name == "_write_mask" else _unexpected)
    engine = harness()
    engine.add([1, 2], max_tokens=5)
    engine.run()
    edits = engine.engine._table._edits
    assert edits._masks is None
    assert edits._penalties._counts is None


def _unexpected(*args: object) -> None:
    raise AssertionError("edits were gathered")


def test_a_table_row_serves_one_request_after_another(harness: Callable[..., Any], fake: Any) -> None:
    """What a request left in its row is not seen by the next."""
    engine = harness(max_num_seqs=1)
    engine.add([1, 2], "before", frequency_penalty=2.0, allowed_token_ids=[1, 2, 3], logit_bias={5: 50.0})
    engine.add([1, 2], "plain", max_tokens=10)
    engine.add([3], "after", frequency_penalty=2.0, repetition_penalty=4.0, max_tokens=10)
    engine.run()
    fresh = harness()
    fresh.add([3], "after", frequency_penalty=2.0, repetition_penalty=4.0, max_tokens=10)
    fresh.run()
    assert set(engine.tokens("before")) <= {1, 2, 3}
    assert engine.tokens("plain") == fake.continuation([1, 2], 10)
    assert engine.tokens("after") == fresh.tokens("after")


def test_counts_survive_a_preemption(harness: Callable[..., Any]) -> None:
    params = {"frequency_penalty": 2.0, "presence_penalty": 1.0, "repetition_penalty": 5.0, "max_tokens": 20}
    roomy, tight = harness(), harness(num_blocks=8)
    for engine in (roomy, tight):
        for prompt in ([1, 2, 3], [4, 5], [6] * 5):
            engine.add(prompt, **params)
        engine.run()
    assert tight.engine.stats.num_preemptions > 0
    assert {r: roomy.tokens(r) for r in roomy.outputs} == {r: tight.tokens(r) for r in tight.outputs}


def test_a_row_with_nothing_left_to_choose_ends_its_request(harness: Callable[..., Any]) -> None:
    engine = harness(eos_token_ids=(4,))
    engine.add([1], "r", allowed_token_ids=[4, 5], min_tokens=2, logit_bias={5: -100.0}, max_tokens=4)
    assert engine.run()["r"].outputs[0].token_ids == [5, 5, 4]


def test_beam_search_is_refused(tiny: Callable[..., str]) -> None:
    with LLM(tiny(), max_model_len=64) as llm, pytest.raises(BeamSearchError) as caught:
        llm.beam_search([{"prompt_token_ids": [1]}], beam_width=4)
    assert str(caught.value).startswith("PACELINE-E502: LLM.beam_search is refused: ")


def test_the_sum_of_log_probabilities_goes_with_them(tiny: Callable[..., str]) -> None:
    with LLM(tiny(), max_model_len=64) as llm:
        params = [SamplingParams(seed=1, logprobs=logprobs) for logprobs in (2, None)]
        scored, bare = llm.generate([{"prompt_token_ids": [1, 2]}] * 2, params, use_tqdm=False)
    completion = scored.outputs[0]
    own = [entries[token].logprob for token, entries in zip(completion.token_ids, completion.logprobs, strict=True)]
    assert completion.cumulative_logprob == pytest.approx(sum(own))
    assert np.isfinite(completion.cumulative_logprob)
    assert bare.outputs[0].cumulative_logprob is None
    assert bare.outputs[0].token_ids == completion.token_ids
