"""Failures of speculation: it changed what was emitted, or what was reported about it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline import LLM, RequestOutput, SamplingParams

NUM_TOKENS = 60
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
LENGTHS = range(1, 7)
PROPOSERS = ("ngram", "draft_model", "oracle")
HOSTILE = ("random", "tree", "foreign_draft")

Serve = Callable[..., list[RequestOutput]]


def prompts() -> list[list[int]]:
    """One word repeated, a phrase of seven repeated, and random ones of 5 to 90 tokens."""
    random = np.random.default_rng(1)
    lengths = np.linspace(5, 90, 18).astype(int)
    return [[7] * 48, random.integers(0, 512, 7).tolist() * 6, *(random.integers(0, 512, n).tolist() for n in lengths)]


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def num_drafted_and_accepted(outputs: list[RequestOutput]) -> tuple[int, int]:
    return (
        sum(output.metrics.num_draft_tokens for output in outputs),
        sum(output.metrics.num_accepted_tokens for output in outputs),
    )


@pytest.fixture(scope="module")
def truth(tiny: Callable[..., str], greedy: Callable[..., list[list[int]]]) -> list[list[int]]:
    return greedy(tiny(), prompts(), NUM_TOKENS)


@pytest.fixture(scope="module")
def speculative(tiny: Callable[..., str], engines: Callable[..., LLM]) -> Callable[..., LLM]:
    """``(proposer, sequences, length, **options) -> LLM``; the probes are told the sequences, prompt and output."""

    def build(proposer: str, sequences: list[list[int]], length: int, **options: Any) -> LLM:
        known = {
            "ngram": ("ngram", {}),
            "draft_model": ("draft_model", {"model": "target"}),
            "foreign_draft": ("draft_model", {"model": tiny(1)}),
            "oracle": ("probes:oracle", {"truth": sequences, "wrong_at": 2}),
            "random": ("probes:random", {"seed": 5}),
            "tree": ("probes:tree", {"truth": sequences}),
        }
        name, own = known[proposer]
        return engines(
            tiny(), proposer=name, proposer_options=own, num_speculative_tokens=length, max_num_seqs=8, **options
        )

    return build


@pytest.fixture
def wanted(truth: list[list[int]]) -> list[list[int]]:
    """Whole sequences."""
    return [prompt + output for prompt, output in zip(prompts(), truth, strict=True)]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_in_a_batch_of_eight_the_ids_are_those_without_speculation(
    speculative: Callable[..., LLM],
    serve: Serve,
    truth: list[list[int]],
    wanted: list[list[int]],
    proposer: str,
    length: int,
) -> None:
    """B001."""
    outputs = serve(speculative(proposer, wanted, length), prompts(), GREEDY)
    assert ids(outputs) == truth
    drafted, accepted = num_drafted_and_accepted(outputs)
    assert drafted > 0
    assert accepted > 0


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_alone_the_ids_are_those_without_speculation(
    speculative: Callable[..., LLM], serve: Serve, truth: list[list[int]], wanted: list[list[int]], proposer: str
) -> None:
    """B001: one request at a time, with draft lengths in turn; the slow test below has every prompt and length."""
    llm = speculative(proposer, wanted, max(LENGTHS))
    chosen = [0, 1, *range(2, len(truth), 2)]
    outputs = []
    for index, length in zip(chosen, itertools.cycle(LENGTHS), strict=False):
        outputs += serve(llm, [{"prompt_token_ids": prompts()[index], "num_speculative_tokens": length}], GREEDY)
        assert len(outputs[-1].metrics.accepted_per_position) <= length
    assert ids(outputs) == [truth[index] for index in chosen]
    assert min(num_drafted_and_accepted(outputs)) > 0


@pytest.mark.parametrize("proposer", HOSTILE)
def test_drafts_of_a_hostile_proposer_never_show(
    speculative: Callable[..., LLM], serve: Serve, truth: list[list[int]], wanted: list[list[int]], proposer: str
) -> None:
    """B001: mixed draft lengths in one batch."""
    limited = [{"prompt_token_ids": p, "num_speculative_tokens": 1 + i % 6} for i, p in enumerate(prompts())]
    longest = 2 if proposer == "foreign_draft" else max(LENGTHS)  # it takes a forward for each token
    outputs = serve(speculative(proposer, wanted, longest), limited, GREEDY)
    assert ids(outputs) == truth
    assert num_drafted_and_accepted(outputs)[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("proposer", PROPOSERS + HOSTILE)
def test_alone_with_every_draft_length(
    speculative: Callable[..., LLM],
    serve: Serve,
    truth: list[list[int]],
    wanted: list[list[int]],
    proposer: str,
    length: int,
) -> None:
    """B001: the full grid."""
    llm = speculative(proposer, wanted, length)
    outputs = [serve(llm, [prompt], GREEDY)[0] for prompt in prompts()]
    assert ids(outputs) == truth
    assert num_drafted_and_accepted(outputs)[0] > 0


LOGPROB_PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=20, logprobs=5),
    "warm": SamplingParams(temperature=0.9, seed=4, max_tokens=20, logprobs=5),
}


def few_prompts() -> list[list[int]]:
    return [prompts()[index] for index in (0, 1, 4, 9)]


@pytest.fixture(scope="module")
def plain_logprobs(
    tiny: Callable[..., str], engines: Callable[..., LLM], serve: Serve
) -> dict[str, list[RequestOutput]]:
    llm = engines(tiny(), numerics="exact", max_num_seqs=8)
    return {name: serve(llm, few_prompts(), params) for name, params in LOGPROB_PARAMS.items()}


@pytest.mark.parametrize("sampling", LOGPROB_PARAMS)
def test_logprobs_are_those_of_the_target(
    tiny: Callable[..., str],
    plain_logprobs: dict[str, list[RequestOutput]],
    target_logits: Callable[[str, RequestOutput], Any],
    sampling: str,
) -> None:
    """B009: each emitted token's and the top five's, from the raw logits, as a plain transformers forward has them."""
    for output in plain_logprobs[sampling]:
        expected = target_logits(tiny(), output).double().log_softmax(-1)
        completion = output.outputs[0]
        assert completion.logprobs is not None
        assert len(completion.logprobs) == len(completion.token_ids) == 20
        for token, entries, row in zip(completion.token_ids, completion.logprobs, expected, strict=True):
            assert {t for t, entry in entries.items() if entry.rank is not None} == set(row.topk(5).indices.tolist())
            assert set(entries) == {t for t, entry in entries.items() if entry.rank is not None} | {token}
            for t, entry in entries.items():
                assert abs(entry.logprob - float(row[t])) <= 1e-4
                assert entry.logprob != 0.0


@pytest.mark.parametrize("proposer", PROPOSERS + HOSTILE)
@pytest.mark.parametrize("sampling", LOGPROB_PARAMS)
def test_logprobs_do_not_depend_on_speculation(
    speculative: Callable[..., LLM],
    serve: Serve,
    plain_logprobs: dict[str, list[RequestOutput]],
    sampling: str,
    proposer: str,
) -> None:
    """B009: the same entries as without speculation, bit for bit."""
    plain = plain_logprobs[sampling]
    sequences = [output.prompt_token_ids + output.outputs[0].token_ids for output in plain]
    llm = speculative(proposer, sequences, 4, numerics="exact")
    outputs = serve(llm, few_prompts(), LOGPROB_PARAMS[sampling])
    assert ids(outputs) == ids(plain)
    assert [o.outputs[0].logprobs for o in outputs] == [o.outputs[0].logprobs for o in plain]
    drafted, accepted = num_drafted_and_accepted(outputs)
    assert drafted > 0
    assert accepted > 0 or proposer not in ("draft_model", "oracle", "tree")
