"""With any proposer an engine emits what it emits without one: the same tokens, the same bits of their scores."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from paceline import LLM, RequestOutput, SamplingParams
from paceline.engine.outputs import CompletionOutput
from paceline.sampling.noise import derive_seed

NUM_TOKENS = 24
HEAD = "a folder that the test makes"


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
    "own_layer": Proposer("draft_model", lambda truth: {"model": "target", "layers": [0]}, 3, "any"),
    "eagle_chain": Proposer("eagle", lambda truth: {"model": HEAD}, 3, "any"),
    "eagle_tree": Proposer("eagle", lambda truth: {"model": HEAD, "shape": "tree", "top_k": 3, "depth": 3}, 7, "any"),
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
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.3},
    "presence": {"temperature": 0.7, "presence_penalty": 1.5},
    "frequency": {"temperature": 0.7, "frequency_penalty": -1.0},
    "logit_bias": {"temperature": 0.9, "logit_bias": {3: 4.0, 77: 3.5, 200: -100.0, 500: 2.5}},
    "allowed_ids": {"temperature": 0.9, "allowed_token_ids": list(range(0, 512, 5))},
    "bad_words": {"temperature": 0.9},
    "constraint": {"temperature": 0.9, "constraints": {"probes:residue": 3}},
    "prompt_logprobs": {"temperature": 0.9, "prompt_logprobs": 3},
    "samples": {"temperature": 0.9, "n": 3},
    "all_edits": {
        "temperature": 0.8,
        "top_k": 60,
        "top_p": 0.97,
        "repetition_penalty": 1.2,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.7,
        "logit_bias": {10: 4.0, 33: 4.0, 20: -5.0},
        "allowed_token_ids": list(range(400)),
        "bad_words": ["t10 t10", *(f"t{token}" for token in range(0, 100, 4))],
        "constraints": {"probes:residue": 4},
        "prompt_logprobs": 0,
        "n": 2,
    },
}
# What these change is seen against the same request without them.
EDITS = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "constraints",
)
CONSTRAINTS = ["probes:residue"]

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


def scored(outputs: list[RequestOutput]) -> list[Any]:
    """Tokens, the log-probability of each emitted token and their sum, per sample; and the prompt's."""
    return [([_scored(completion) for completion in output.outputs], output.prompt_logprobs) for output in outputs]


def _scored(completion: CompletionOutput) -> tuple[int, list[int], list[float], float | None]:
    own = [e[t].logprob for t, e in zip(completion.token_ids, completion.logprobs, strict=True)]
    return completion.index, completion.token_ids, own, completion.cumulative_logprob


def tokens(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


@pytest.fixture(scope="session")
def model(tiny: Callable[..., str], worded: Callable[[str], str], probes: None) -> str:
    return worded(tiny())


@pytest.fixture(scope="session")
def eagle_head(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random EAGLE-3 head for the tiny model, which drafts 200 of its 512 ids."""
    random = torch.Generator().manual_seed(3)
    hidden, vocab, drafted = 64, 512, 200
    shapes = {
        "fc.weight": (hidden, 3 * hidden),
        "lm_head.weight": (drafted, hidden),
        **{
            f"midlayer.self_attn.{name}_proj.weight": (width, 2 * hidden)
            for name, width in zip("qkv", (64, 32, 32), strict=True)
        },
        "midlayer.self_attn.o_proj.weight": (hidden, 64),
        **{f"midlayer.mlp.{name}_proj.weight": (128, hidden) for name in ("gate", "up")},
        "midlayer.mlp.down_proj.weight": (hidden, 128),
    }
    tensors = {name: torch.randn(shape, generator=random) / shape[1] ** 0.5 for name, shape in shapes.items()}
    norms = ("norm", "midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm")
    tensors |= {f"{name}.weight": torch.ones(hidden) for name in norms}
    ids = torch.randperm(vocab, generator=random)[:drafted].sort().values
    tensors |= {"d2t": ids - torch.arange(drafted), "t2d": torch.isin(torch.arange(vocab), ids)}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-6,
        "vocab_size": vocab,
        "draft_vocab_size": drafted,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 1],
    }
    folder = tmp_path_factory.mktemp("head")
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def generated(model: str, params: SamplingParams) -> list[RequestOutput]:
    """Without speculation, one prompt at a time."""
    options = {"max_model_len": 128, "enable_prefix_caching": False, "constraints": CONSTRAINTS}
    with LLM(model, numerics="exact", **options) as llm:
        return [llm.generate(prompt, params, use_tqdm=False)[0] for prompt in prompts()]


@pytest.fixture(scope="session")
def bad_words(model: str) -> list[str]:
    """What each prompt's output at temperature 0.9 has at 4 and 5, and at 9 to 11."""
    outputs = generated(model, SamplingParams(max_tokens=12, seed=11, temperature=0.9))
    runs = [run for [output] in tokens(outputs) for run in (output[4:6], output[9:])]
    return [" ".join(f"t{token}" for token in run) for run in runs]


@pytest.fixture(scope="session")
def sampling_params(bad_words: list[str]) -> Callable[[str], SamplingParams]:
    def params(name: str) -> SamplingParams:
        extra = {"bad_words": bad_words} if name == "bad_words" else {}
        return SamplingParams(max_tokens=NUM_TOKENS, logprobs=0, seed=11, **SAMPLING[name], **extra)

    return params


@pytest.fixture(scope="session")
def plain(model: str, sampling_params: Callable[[str], SamplingParams]) -> Callable[[str], list[RequestOutput]]:
    """Outputs without speculation, one prompt at a time on fresh engines' roomy settings; made once per sampling."""
    made: dict[str, list[RequestOutput]] = {}

    def outputs(sampling: str) -> list[RequestOutput]:
        if sampling not in made:
            made[sampling] = generated(model, sampling_params(sampling))
        return made[sampling]

    return outputs


@pytest.fixture
def speculative(model: str, eagle_head: str, plain: Callable[[str], list[RequestOutput]]) -> Callable[..., LLM]:
    """``(proposer, sampling, **settings) -> LLM`` with that proposer told the truth for that sampling."""

    def build(proposer: str, sampling: str, **settings: Any) -> LLM:
        chosen = PROPOSERS[proposer]
        # A prompt that begins another is the first to be found.
        by_length = sorted(plain(sampling), key=lambda output: len(output.prompt_token_ids))
        truth = [output.prompt_token_ids + c.token_ids for output in by_length for c in output.outputs]
        return LLM(
            model,
            numerics="exact",
            max_model_len=128,
            constraints=CONSTRAINTS,
            proposer=chosen.name,
            proposer_options=_with_head(chosen.options(truth), eagle_head),
            num_speculative_tokens=chosen.num_speculative_tokens,
            **settings,
        )

    return build


def _with_head(options: dict[str, Any], folder: str) -> dict[str, Any]:
    return options | {"model": folder} if options.get("model") == HEAD else options


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
        if setting != "preempting":
            assert preemptions == 0
        elif "prompt_logprobs" not in SAMPLING[sampling]:  # those wait for blocks instead, under some proposers
            assert preemptions > 0
        assert (cached > 0) == (setting != "uncached" and "prompt_logprobs" not in SAMPLING[sampling])
        _check_acceptance(proposer, sampling, cold + warm)

    return check


def _check_acceptance(proposer: str, sampling: str, outputs: list[RequestOutput]) -> None:
    drafted = sum(output.metrics.num_draft_tokens for output in outputs)
    accepted = sum(output.metrics.num_accepted_tokens for output in outputs)
    assert drafted > 0
    if "n" in SAMPLING[sampling] and PROPOSERS[proposer].name.startswith("probes"):
        return  # it cannot know which of the samples it drafts for
    match PROPOSERS[proposer].accepts:
        case "all":
            assert accepted == drafted
        case "none":
            assert accepted == 0
        case "some":
            assert 0 < accepted < drafted


def test_greedy_tokens_are_those_of_a_plain_transformers_forward(
    model: str, plain: Callable[[str], list[RequestOutput]], reference: Callable[..., list[int]]
) -> None:
    for output in plain("greedy"):
        wanted = reference(model, output.prompt_token_ids, len(output.outputs[0].token_ids))
        assert output.outputs[0].token_ids == wanted


def test_ngram_lookup_is_accepted_in_part(
    speculative: Callable[..., LLM], sampling_params: Callable[[str], SamplingParams]
) -> None:
    with speculative("ngram", "greedy") as llm:
        outputs = llm.generate(prompts(), sampling_params("greedy"), use_tqdm=False)
    assert sum(output.metrics.num_accepted_tokens for output in outputs) > 0


def test_a_greedy_draft_model_equal_to_the_target_is_always_accepted_at_temperature_0(
    model: str, sampling_params: Callable[[str], SamplingParams]
) -> None:
    options = {"model": "target", "sampling": "greedy"}
    with LLM(model, numerics="exact", max_model_len=128, proposer="draft_model", proposer_options=options) as llm:
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


@pytest.mark.parametrize("sampling", [name for name in SAMPLING if {*EDITS} & {*SAMPLING[name]} or name == "bad_words"])
def test_every_edit_of_the_logits_changes_tokens(
    model: str,
    plain: Callable[[str], list[RequestOutput]],
    sampling_params: Callable[[str], SamplingParams],
    sampling: str,
) -> None:
    given = sampling_params(sampling)
    for name in set(EDITS) & given.model_fields_set:
        without = given.model_copy(
            update={name: SamplingParams.model_fields[name].get_default(call_default_factory=True)}
        )
        assert tokens(generated(model, without)) != tokens(plain(sampling)), name


def test_samples_differ_and_share_their_prompt(
    model: str, plain: Callable[[str], list[RequestOutput]], sampling_params: Callable[[str], SamplingParams]
) -> None:
    """Sample j is what the prompt gives alone under the seed derived from the request's and j."""
    given = sampling_params("samples")
    for index in range(given.n):
        alone = given.model_copy(update={"n": 1, "seed": derive_seed(given.seed, index)})
        assert [[own] for own in (run[index] for run in tokens(plain("samples")))] == tokens(generated(model, alone))
    for samples in tokens(plain("samples")):
        assert len({tuple(sample) for sample in samples}) == given.n
