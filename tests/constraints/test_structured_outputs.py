"""Structured outputs through the engine: always valid, and the same tokens whoever drafts."""

from __future__ import annotations

import json
import random
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paceline import LLM, RequestOutput, SamplingParams

END = 0
NUM_SCHEMAS = 200
CORPUS = '{"name": "value", "number": 12.5, "true": false, "items": [1, 2, 3], "null": null} hello world, the quick fox'
CLOSING = '"]}'
PROMPTS = ("", '{"name": "value", ', "hello world, hello world", "[1, 2, 3]")
PROPOSERS: dict[str, dict[str, Any]] = {
    "ngram": {"proposer": "ngram", "num_speculative_tokens": 4},
    "draft_model": {
        "proposer": "draft_model",
        "proposer_options": {"model": "target"},
        "num_speculative_tokens": 3,
    },
    "random": {"proposer": "probes:random", "num_speculative_tokens": 2},
}


@pytest.fixture(scope="module")
def model(tiny: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random Llama with a byte-level tokenizer of 301 ids, of which 0 ends a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("byte_level")
    shutil.copytree(tiny(vocab_size=301, eos_token_id=END), folder, dirs_exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=301,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<end>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS] * 5, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def schemas(root: Path) -> list[dict[str, Any]]:
    made = runpy.run_path(str(root / "plugins" / "llguidance" / "tests" / "random_schemas.py"))["random_schema"]
    return [made(random.Random(seed)) for seed in range(NUM_SCHEMAS)]


@pytest.fixture(scope="module")
def generated(model: str, schemas: list[dict[str, Any]], probes: None) -> Callable[..., list[RequestOutput]]:
    """``(**options) -> outputs``, one for each schema, at temperatures 0.7 to 1.3."""

    def run(**options: Any) -> list[RequestOutput]:
        with LLM(model, numerics="exact", max_model_len=512, constraints=["llguidance"], **options) as llm:
            encode = llm.get_tokenizer().encode
            words = llm.get_tokenizer().get_vocab()
            # A random model would hardly ever close what it opens.
            bias = {token: 6.0 for word, token in words.items() if set(word) & set(CLOSING)} | {END: 9.0}
            params = [
                SamplingParams(
                    temperature=(0.7, 1.0, 1.3)[seed % 3],
                    seed=seed,
                    max_tokens=400,
                    logit_bias=bias,
                    structured_outputs={"json": schema},
                )
                for seed, schema in enumerate(schemas)
            ]
            prompts = [
                {"prompt_token_ids": encode(PROMPTS[seed % len(PROMPTS)] + f" {seed}")} for seed in range(len(schemas))
            ]
            return llm.generate(prompts, params, use_tqdm=False)

    return run


@pytest.fixture(scope="module")
def plain(generated: Callable[..., list[RequestOutput]]) -> list[RequestOutput]:
    return generated()


def test_every_output_is_valid(plain: list[RequestOutput], schemas: list[dict[str, Any]]) -> None:
    for seed, (output, schema) in enumerate(zip(plain, schemas, strict=True)):
        completion = output.outputs[0]
        assert completion.finish_reason == "stop", (seed, completion.text, schema)
        errors = list(jsonschema.Draft202012Validator(schema).iter_errors(json.loads(completion.text)))
        assert not errors, (seed, completion.text, schema)


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_drafts_change_no_token(
    proposer: str, plain: list[RequestOutput], generated: Callable[..., list[RequestOutput]]
) -> None:
    outputs = generated(**PROPOSERS[proposer])
    assert [output.outputs[0].token_ids for output in outputs] == [output.outputs[0].token_ids for output in plain]
    drafted = sum(output.metrics.num_draft_tokens for output in outputs)
    accepted = sum(output.metrics.num_accepted_tokens for output in outputs)
    assert 0 < accepted <= drafted
    assert (accepted == drafted) == (proposer == "draft_model")


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        ({"regex": "[a-c]{3}-[0-9]{2}"}, lambda text: text[3] == "-" and text[:3].isalpha() and text[4:].isdigit()),
        ({"choice": ["yes", "no", "yes, no"]}, lambda text: text in ("yes", "no", "yes, no")),
        (
            {"grammar": 'start: "(" start ")" | "x"'},
            lambda text: text.strip("()") == "x" and text.count("(") == text.count(")"),
        ),
        ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_every_kind_ends_in_its_form(model: str, asked: dict[str, Any], fits: Callable[[str], bool]) -> None:
    with LLM(model, max_model_len=512, constraints=["llguidance"], proposer="ngram") as llm:
        bias = {token: 4.0 for word, token in llm.get_tokenizer().get_vocab().items() if set(word) & set(')"}')}
        params = [
            SamplingParams(
                temperature=1.0, seed=seed, max_tokens=300, logit_bias=bias | {END: 6.0}, structured_outputs=asked
            )
            for seed in range(8)
        ]
        outputs = llm.generate(["hello"] * 8, params, use_tqdm=False)
    texts = [output.outputs[0].text for output in outputs]
    assert all(output.outputs[0].finish_reason == "stop" for output in outputs), texts
    assert all(map(fits, texts)), texts
