"""With any proposer an engine emits what it emits without one: the same tokens, the same bits of their scores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from paceline import LLM, RequestOutput, SamplingParams

NUM_TOKENS = 24


@dataclass(frozen=True)
class Proposer:
    """A proposer of the grid, what may be said of its acceptance, and its options made from the truth."""

    name: str
    options: Callable[[list[list[int]]], dict[str, Any]]
    num_speculative_tokens: int = 4
    accepts: str = "some"  # some, all, none, any


def _with_truth(**extra: Any) -> Callable[[list[list[int]]], dict[str, Any]]:
    return lambda truth: {"truth": truth, **extra}


PROPOSERS = {
    "ngram": Proposer("ngram", lambda truth: {}, accepts="any"),
    "draft_model": Proposer("draft_model", lambda truth: {"model": "target"}, 3, "all"),
    "random": Proposer("probes:random", lambda truth: {"seed": 1}, accepts="any"),
    "always_wrong": Proposer("probes:wrong", _with_truth(), accepts="none"),
    "always_right": Proposer("probes:oracle", _with_truth(), accepts="all"),
    "wrong_at_0": Proposer("probes:oracle", _with_truth(wrong_at=0), accepts="none"),
    "wrong_at_2": Proposer("probes:oracle", _with_truth(wrong_at=2), accepts="some"),
    "empty": Proposer("probes:empty", _with_truth(), accepts="all"),
    "tree": Proposer("probes:tree", _with_truth(), 9, "some"),
    "tree_wrong_at_1": Proposer("probes:tree", _with_truth(wrong_at=1), 9, "some"),
    "features": Proposer("probes:features", _with_truth(wrong_at=1), accepts="some"),
}

SAMPLING = {
    "greedy": {"temperature": 0.0},
    "warm": {"temperature": 0.7},
    "hot": {"temperature": 1.3},
    "top_k": {"temperature": 0.9, "top_k": 20},
    "top_p": {"temperature": 1.0, "top_p": 0.9},
    "min_p": {"temperature": 1.0, "min_p": 0.05},
    "all_filters": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "min_tokens": 5},
}

# What else happens in a run: little room (preemption), small steps (chunks), no cache, small blocks.
SETTINGS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "preempting": {"num_gpu_blocks_override": 24, "block_size": 8},
    "chunked": {"max_num_batched_tokens": 24, "max_num_seqs": 4},
    "uncached": {"enable_prefix_caching": False},
    "one_by_one": {"max_num_seqs": 1, "block_size": 4},
}


def prompts() -> list[dict[str, list[int]]]:
    """Random ones, repetitive ones (for lookup), ones that share a prefix, and one sent twice."""
    random = np.random.default_rng(7)
    shared = random.integers(0, 512, 33).tolist()
    tails = [random.integers(0, 512, n).tolist() for n in (1, 9)]
    ids = [random.integers(0, 512, 5).tolist(), [7] * 30, random.integers(0, 512, 7).tolist() * 5]
    ids += [shared + tail for tail in tails] + [shared, shared]
    return [{"prompt_token_ids": tokens} for tokens in ids]


def scored(outputs: list[RequestOutput]) -> list[tuple[list[int], list[float]]]:
    """Tokens and the log-probability of each emitted token."""
    completions = [output.outputs[0] for output in outputs]
    return [(c.token_ids, [e[t].logprob for t, e in zip(c.token_ids, c.logprobs, strict=True)]) for c in completions]


@pytest.fixture(scope="session")
def sampling_params() -> Callable[[str], SamplingParams]:
    return lambda name: SamplingParams(max_tokens=NUM_TOKENS, logprobs=0, seed=11, **SAMPLING[name])


@pytest.fixture(scope="session")
def plain(
    tiny: Callable[..., str], sampling_params: Callable[[str], SamplingParams]
) -> Callable[[str], list[RequestOutput]]:
    """Outputs without speculation, one prompt at a time on fresh engines' roomy settings; made once per sampling."""
    made: dict[str, list[RequestOutput]] = {}

    def outputs(sampling: str) -> list[RequestOutput]:
        if sampling not in made:
            with LLM(tiny(), numerics="exact", max_model_len=128, enable_prefix_caching=False) as llm:
                made[sampling] = [llm.generate(p, sampling_params(sampling), use_tqdm=False)[0] for p in prompts()]
        return made[sampling]

    return outputs


@pytest.fixture
def speculative(
    tiny: Callable[..., str], probes: None, plain: Callable[[str], list[RequestOutput]]
) -> Callable[..., LLM]:
    """``(proposer, sampling, **settings) -> LLM`` with that proposer told the truth for that sampling."""

    def build(proposer: str, sampling: str, **settings: Any) -> LLM:
        chosen = PROPOSERS[proposer]
        truth = [o.prompt_token_ids + o.outputs[0].token_ids for o in plain(sampling)]
        return LLM(
            tiny(),
            numerics="exact",
            max_model_len=128,
            proposer=chosen.name,
            proposer_options=chosen.options(truth),
            num_speculative_tokens=chosen.num_speculative_tokens,
            **settings,
        )

    return build


def pairwise() -> Iterator[tuple[str, str, str]]:
    """A covering array: every pair of values of any two factors stands in at least one row (greedy choice)."""
    factors = [list(PROPOSERS), list(SAMPLING), list(SETTINGS)]
    rows = list(itertools.product(*factors))
    missing = {(i, row[i], j, row[j]) for row in rows for i, j in itertools.combinations(range(3), 2)}
    while missing:
        best = max(rows, key=lambda row: len(_pairs(row) & missing))
        missing -= _pairs(best)
        yield best


def _pairs(row: tuple[str, ...]) -> set[tuple[int, str, int, str]]:
    return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}


COVERING = sorted(pairwise())
FULL = sorted(set(itertools.product(PROPOSERS, SAMPLING, SETTINGS)) - set(COVERING))


@pytest.mark.parametrize(("proposer", "sampling", "setting"), COVERING)
def test_tokens_and_scores_are_those_without_speculation(
    proposer: str, sampling: str, setting: str, check_path: Callable[[str, str, str], None]
) -> None:
    check_path(proposer, sampling, setting)


@pytest.mark.slow
@pytest.mark.parametrize(("proposer", "sampling", "setting"), FULL)
def test_full_grid(proposer: str, sampling: str, setting: str, check_path: Callable[[str, str, str], None]) -> None:
    check_path(proposer, sampling, setting)


@pytest.fixture
def check_path(
    plain: Callable[[str], list[RequestOutput]],
    speculative: Callable[..., LLM],
    sampling_params: Callable[[str], SamplingParams],
) -> Callable[[str, str, str], None]:
    def check(proposer: str, sampling: str, setting: str) -> None:
        with speculative(proposer, sampling, **SETTINGS[setting]) as llm:
            cold = llm.generate(prompts(), sampling_params(sampling), use_tqdm=False)
            warm = llm.generate(prompts(), sampling_params(sampling), use_tqdm=False)
            preemptions = llm.engine.stats.num_preemptions
            cached = sum(output.num_cached_tokens for output in warm)
            assert llm.engine.kv.num_used == 0
        wanted = scored(plain(sampling))
        assert scored(cold) == wanted
        assert scored(warm) == wanted
        assert (preemptions > 0) == (setting == "preempting")
        assert (cached > 0) == (setting != "uncached")
        _check_acceptance(proposer, cold + warm)

    return check


def _check_acceptance(proposer: str, outputs: list[RequestOutput]) -> None:
    drafted = sum(output.metrics.num_draft_tokens for output in outputs)
    accepted = sum(output.metrics.num_accepted_tokens for output in outputs)
    assert drafted > 0
    match PROPOSERS[proposer].accepts:
        case "all":
            assert accepted == drafted
        case "none":
            assert accepted == 0
        case "some":
            assert 0 < accepted < drafted


def test_greedy_tokens_are_those_of_a_plain_transformers_forward(
    tiny: Callable[..., str], plain: Callable[[str], list[RequestOutput]], reference: Callable[..., list[int]]
) -> None:
    for output in plain("greedy"):
        wanted = reference(tiny(), output.prompt_token_ids, len(output.outputs[0].token_ids))
        assert output.outputs[0].token_ids == wanted


def test_ngram_lookup_is_accepted_in_part(
    speculative: Callable[..., LLM], sampling_params: Callable[[str], SamplingParams]
) -> None:
    with speculative("ngram", "greedy") as llm:
        outputs = llm.generate(prompts(), sampling_params("greedy"), use_tqdm=False)
    assert sum(output.metrics.num_accepted_tokens for output in outputs) > 0


def test_a_greedy_draft_model_equal_to_the_target_is_always_accepted_at_temperature_0(
    tiny: Callable[..., str], sampling_params: Callable[[str], SamplingParams]
) -> None:
    options = {"model": "target", "sampling": "greedy"}
    with LLM(tiny(), numerics="exact", max_model_len=128, proposer="draft_model", proposer_options=options) as llm:
        outputs = llm.generate(prompts(), sampling_params("greedy"), use_tqdm=False)
    drafted = sum(output.metrics.num_draft_tokens for output in outputs)
    assert drafted == sum(output.metrics.num_accepted_tokens for output in outputs) > 0


def test_speculation_can_be_switched_off_per_request(
    plain: Callable[[str], list[RequestOutput]],
    speculative: Callable[..., LLM],
    sampling_params: Callable[[str], SamplingParams],
) -> None:
    limited = [prompt | {"num_speculative_tokens": index % 3} for index, prompt in enumerate(prompts())]
    with speculative("always_right", "warm") as llm:
        outputs = llm.generate(limited, sampling_params("warm"), use_tqdm=False)
    assert scored(outputs) == scored(plain("warm"))
    longest = [len(output.metrics.accepted_per_position) for output in outputs]
    assert longest == [index % 3 for index in range(len(outputs))]
