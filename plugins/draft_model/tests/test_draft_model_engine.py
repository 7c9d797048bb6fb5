"""In an engine: what draft models with another vocabulary, or of some layers, draft, and that all else is the same."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import LLM, RequestOutput, SamplingParams
from paceline.api import PacelineError

LETTERS = string.ascii_letters + string.digits + " ."
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
# Little room (preemption), and small steps (chunks). Both have prefix hits.
SETTINGS: dict[str, dict[str, Any]] = {
    "preempting": {"num_gpu_blocks_override": 24, "block_size": 8},
    "chunked": {"max_num_batched_tokens": 24, "max_num_seqs": 4, "block_size": 4},
}


def llama(vocab_size: int, **config: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES | config, vocab_size=vocab_size))


def saved(model: Any, tokenizer: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def target(byte_level: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model of single letters."""
    return saved(llama(len(LETTERS)), byte_level(LETTERS), tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def shuffled(byte_level: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same model under other ids, with rows that no token has."""
    import torch

    order = np.random.default_rng(5).permutation(len(LETTERS))
    own, other = llama(len(LETTERS)), llama(len(LETTERS) + 9)
    state = own.state_dict()
    with torch.no_grad():
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            padded = torch.full((len(LETTERS) + 9, 64), 0.5)
            padded[: len(LETTERS)] = state[name][order]
            state[name] = padded
    other.load_state_dict(state)
    letters = "".join(LETTERS[letter] for letter in order)
    return saved(other, byte_level(letters), tmp_path_factory.mktemp("shuffled"))


@pytest.fixture(scope="module")
def foreign(byte_level: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another model, that lacks some letters and has longer tokens."""
    import torch

    torch.manual_seed(9)
    tokenizer = byte_level(LETTERS[3:40] + "!", "de", "fg")
    return saved(llama(len(tokenizer), num_hidden_layers=1), tokenizer, tmp_path_factory.mktemp("foreign"))


def prompts() -> list[dict[str, list[int]]]:
    """Random ones, some of which share a prefix, and one sent twice."""
    random = np.random.default_rng(7)
    shared = random.integers(0, len(LETTERS), 33).tolist()
    tails = [random.integers(0, len(LETTERS), n).tolist() for n in (1, 9)]
    ids = [random.integers(0, len(LETTERS), 5).tolist(), [7] * 30, *(shared + tail for tail in tails), shared, shared]
    return [{"prompt_token_ids": tokens} for tokens in ids]


def generate(llm: LLM, temperature: float = 0.0, **settings: Any) -> list[RequestOutput]:
    params = SamplingParams(max_tokens=24, seed=11, temperature=temperature, logprobs=0, **settings)
    return llm.generate(prompts(), params, use_tqdm=False)


def scored(outputs: list[RequestOutput]) -> list[Any]:
    return [(output.outputs[0].token_ids, output.outputs[0].cumulative_logprob) for output in outputs]


def counts(outputs: list[RequestOutput]) -> tuple[int, int]:
    drafted = sum(output.metrics.num_draft_tokens for output in outputs)
    return drafted, sum(output.metrics.num_accepted_tokens for output in outputs)


def engine(model: str, draft: str, **settings: Any) -> LLM:
    own = {
        name: settings.pop(name) for name in ("vocabulary", "sampling", "min_confidence", "layers") if name in settings
    }
    return LLM(
        model,
        **{"numerics": "exact", "max_model_len": 128, "num_speculative_tokens": 3, **settings},
        proposer="draft_model",
        proposer_options={"model": draft, **own},
    )


@pytest.fixture(scope="module")
def plain(target: str) -> Callable[[float], list[Any]]:
    """What the target says by itself, one prompt at a time."""
    made: dict[float, list[Any]] = {}

    def outputs(temperature: float) -> list[Any]:
        if temperature not in made:
            with LLM(target, numerics="exact", max_model_len=128, max_num_seqs=1, enable_prefix_caching=False) as llm:
                made[temperature] = scored(generate(llm, temperature))
        return made[temperature]

    return outputs


CASES = [
    *(("intersect", "shuffled", temperature, "all") for temperature in (0.0, 1.0)),
    *(("intersect", "foreign", temperature, "some") for temperature in (0.0, 1.0)),
    ("text", "shuffled", 0.0, "all"),
    ("text", "shuffled", 1.0, "some"),
    ("text", "foreign", 0.0, "some"),
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("vocabulary", "draft", "temperature", "accepts"), CASES)
def test_with_another_vocabulary_the_output_is_the_targets_own(
    request: pytest.FixtureRequest,
    target: str,
    plain: Callable[[float], list[Any]],
    vocabulary: str,
    draft: str,
    temperature: float,
    accepts: str,
    setting: str,
) -> None:
    with engine(target, request.getfixturevalue(draft), vocabulary=vocabulary, **SETTINGS[setting]) as llm:
        cold, warm = generate(llm, temperature), generate(llm, temperature)
        assert (llm.engine.stats.num_preemptions > 0) == (setting == "preempting")
        assert llm.engine.kv.num_used == 0
    assert scored(cold) == scored(warm) == plain(temperature)
    assert sum(output.num_cached_tokens for output in warm) > 0
    for outputs in (cold, warm):
        drafted, accepted = counts(outputs)
        assert drafted > 20
        assert accepted == drafted if accepts == "all" else accepted < drafted


@pytest.fixture(scope="module")
def lacking(byte_level: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The target's model without its last letters, and with a token before every text: its positions are others."""
    import torch
    from tokenizers import processors

    letters, own = LETTERS[:48], llama(len(LETTERS))
    other = llama(len(letters) + 1)
    state = own.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        state[name] = torch.cat([state[name][: len(letters)], torch.zeros(1, 64)])
    other.load_state_dict(state)
    tokenizer = byte_level(letters, special=["<s>"])
    tokenizer.bos_token = "<s>"
    start = [("<s>", tokenizer.bos_token_id)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=start)
    return saved(other, tokenizer, tmp_path_factory.mktemp("lacking"))


@pytest.mark.parametrize("vocabulary", ["intersect", "text"])
def test_requests_that_share_a_prefix_are_drafted_for_as_alone(target: str, lacking: str, vocabulary: str) -> None:
    """The draft model's KV of a shared prefix is never taken from another request."""

    def accepted(llm: LLM) -> list[tuple[int, list[int]]]:
        metrics = [output.metrics for output in generate(llm)]
        return [(one.num_draft_tokens, one.accepted_per_position.tolist()) for one in metrics]

    with engine(target, lacking, vocabulary=vocabulary, max_num_seqs=1, enable_prefix_caching=False) as llm:
        alone = accepted(llm)
    with engine(target, lacking, vocabulary=vocabulary, block_size=4) as llm:
        together = [accepted(llm), accepted(llm)]
    assert together == [alone, alone]
    assert sum(sum(positions) for _, positions in alone) > 10


def chained(tokenizer: Any, chain: Mapping[str, str], folder: Path) -> str:
    """A model that writes ``chain[token]`` after each token."""
    import torch

    size = len(tokenizer)
    model = llama(size, hidden_size=32, num_attention_heads=2, num_key_value_heads=1)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(size, 32))
        model.lm_head.weight.zero_()
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        for token, following in chain.items():
            ids = tokenizer.convert_tokens_to_ids([token, following])
            model.lm_head.weight[ids[1], ids[0]] = 2.0
    return saved(model, tokenizer, folder)


@pytest.fixture(scope="module")
def spelling(byte_level: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Both write abcdeabcde...: the target as ab, cd, e, the draft model letter by letter."""
    target = chained(
        byte_level("abcde", "ab", "cd"), {"ab": "cd", "cd": "e", "e": "ab"}, tmp_path_factory.mktemp("pieces")
    )
    letters = {"a": "b", "b": "c", "c": "d", "d": "e", "e": "a"}
    return target, chained(byte_level("edcba"), letters, tmp_path_factory.mktemp("letters"))


def run_one(llm: LLM, prompt: list[int], max_tokens: int) -> RequestOutput:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    [output] = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
    return output


def test_text_is_drafted_in_the_targets_own_tokens(spelling: tuple[str, str]) -> None:
    with engine(*spelling, vocabulary="text", num_speculative_tokens=5) as llm:
        ab, cd, e = llm.get_tokenizer().convert_tokens_to_ids(["ab", "cd", "e"])
        output = run_one(llm, [ab], 16)
    assert output.outputs[0].token_ids == [cd, e, ab] * 5 + [cd]
    # Six letters after cd, e and ab in turn are eabcde, abcdea and cdeabc: four tokens, of which the last is left out.
    # Then three tokens are to come, of which two may be drafts: of the letters eab only e.
    assert counts([output]) == (10, 10)
    assert output.metrics.accepted_per_position.tolist() == [4, 3, 3]


def test_inside_a_character_nothing_is_drafted(byte_level: Any, tmp_path: Path) -> None:
    """Both write a\u00e4a\u00e4..., the target with two tokens for the second letter."""
    target, draft = byte_level("a\u00e4"), byte_level("\u00e4a", "\u00e4")
    first, second = target.convert_ids_to_tokens([1, 2])
    models = [
        chained(target, {"a": first, first: second, second: "a"}, tmp_path / "target"),
        chained(draft, {"a": first + second, first + second: "a"}, tmp_path / "draft"),
    ]
    with engine(*models, vocabulary="text", num_speculative_tokens=3) as llm:
        output = run_one(llm, [0], 24)
    assert output.outputs[0].token_ids == [1, 2, 0] * 8
    drafted, accepted = counts([output])
    assert drafted == accepted > 8


def test_what_the_draft_model_cannot_say_is_rejected_and_then_spelt(spelling: tuple[str, str]) -> None:
    """It has no token cd: after ab it drafts c, which is wrong, and after e it drafts a."""
    with engine(*spelling, vocabulary="intersect", num_speculative_tokens=3) as llm:
        ab, cd, e = llm.get_tokenizer().convert_tokens_to_ids(["ab", "cd", "e"])
        output = run_one(llm, [e, ab], 12)
    assert output.outputs[0].token_ids == [cd, e, ab] * 4
    # Only after cd, read as the letters c and d, is a draft right: e.
    assert output.metrics.num_accepted_tokens == 4
    assert output.metrics.accepted_per_position.tolist() == [4, 0, 0]


def test_the_end_of_a_text_is_drafted(byte_level: Any, tmp_path: Path) -> None:
    target, draft = byte_level("abc", special=["<end>"]), byte_level("cba", special=["</s>"])
    target.eos_token, draft.eos_token = "<end>", "</s>"
    models = [
        chained(target, {"a": "b", "b": "c", "c": "<end>"}, tmp_path / "target"),
        chained(draft, {"a": "b", "b": "c", "c": "</s>"}, tmp_path / "draft"),
    ]
    for vocabulary in ("intersect", "text"):
        with engine(*models, vocabulary=vocabulary, num_speculative_tokens=2) as llm:
            output = run_one(llm, llm.get_tokenizer().convert_tokens_to_ids(["a"]), 9)
        assert output.outputs[0].token_ids == [1, 2, 3]
        assert counts([output]) == (2, 2), "after b: c and the end"


@pytest.mark.parametrize("vocabulary", ["intersect", "text"])
def test_past_its_own_context_nothing_is_drafted(target: str, byte_level: Any, tmp_path: Path, vocabulary: str) -> None:
    short = saved(llama(len(LETTERS), max_position_embeddings=40), byte_level(LETTERS), tmp_path)
    with engine(target, short, vocabulary=vocabulary) as llm:
        output = run_one(llm, list(range(30)), 60)
    assert len(output.outputs[0].token_ids) == 60
    drafted, accepted = counts([output])
    assert drafted == accepted
    # The last token drafted from is at 39: 10 or 11 tokens of 60 stand before it.
    assert 6 <= drafted <= 12


def test_without_blocks_of_its_own_a_request_goes_on_without_drafts(
    target: str, shuffled: str, plain: Callable[[float], list[Any]]
) -> None:
    """Requests that share their prefix hold more tokens than there are blocks for the draft model's."""
    with engine(target, shuffled, vocabulary="intersect", num_gpu_blocks_override=9, block_size=8) as llm:
        outputs = generate(llm) + generate(llm)
    assert scored(outputs) == plain(0.0) * 2
    drafted, accepted = counts(outputs)
    assert drafted == accepted > 0


@pytest.mark.parametrize(
    ("numerics", "setting"), [*(("exact", setting) for setting in SETTINGS), ("fast", "preempting")]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_layers_are_always_right(
    target: str, plain: Callable[[float], list[Any]], numerics: str, setting: str, temperature: float
) -> None:
    with engine(target, "target", layers="0-1", numerics=numerics, **SETTINGS[setting]) as llm:
        outputs = generate(llm, temperature) + generate(llm, temperature)
    drafted, accepted = counts(outputs)
    assert drafted == accepted > 100
    if numerics == "exact":
        assert scored(outputs) == plain(temperature) * 2


@pytest.mark.parametrize("layers", ["0", [1]])
@pytest.mark.parametrize("setting", ["preempting", "chunked"])
def test_some_layers_change_nothing(
    target: str, plain: Callable[[float], list[Any]], layers: Any, setting: str
) -> None:
    for temperature in (0.0, 1.0):
        with engine(target, "target", layers=layers, **SETTINGS[setting]) as llm:
            outputs = generate(llm, temperature) + generate(llm, temperature)
        assert scored(outputs) == plain(temperature) * 2
        drafted, accepted = counts(outputs)
        assert accepted < drafted


@pytest.mark.parametrize("idle", [0, 1, 2])
def test_the_layers_named_are_those_that_run(byte_level: Any, tmp_path: Path, idle: int) -> None:
    """A layer that adds nothing can be left out, and no other."""
    import torch

    model = llama(len(LETTERS), num_hidden_layers=3)
    with torch.no_grad():
        model.model.layers[idle].self_attn.o_proj.weight.zero_()
        model.model.layers[idle].mlp.down_proj.weight.zero_()
    path = saved(model, byte_level(LETTERS), tmp_path)
    for left_out in range(3):
        layers = [layer for layer in range(3) if layer != left_out]
        with engine(path, "target", layers=layers) as llm:
            drafted, accepted = counts(generate(llm, 1.0))
        assert (accepted == drafted > 0) == (left_out == idle)


def test_confidence_ends_drafts_after_the_token_that_lacks_it(target: str, plain: Callable[[float], list[Any]]) -> None:
    drafts = {}
    for bound in (0.0, 0.01, 0.03, 1.0):
        with engine(target, "target", min_confidence=bound, num_speculative_tokens=5) as llm:
            outputs = generate(llm, 1.0)
        assert scored(outputs) == plain(1.0)
        drafted, accepted = counts(outputs)
        assert drafted == accepted
        drafts[bound] = drafted / sum(output.metrics.num_drafts for output in outputs)
    assert drafts[0.0] > drafts[0.01] > drafts[0.03] > drafts[1.0] == 1.0


def test_another_tokenizer_is_refused_by_name(target: str, shuffled: str, foreign: str) -> None:
    for draft in (shuffled, foreign):
        words = rf'draft model "{draft}" has another tokenizer: .* the target 64, and id 0 is .*vocabulary="intersect"'
        with pytest.raises(PacelineError, match=words):
            engine(target, draft)
