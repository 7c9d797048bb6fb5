"""The declaration, the options, the sizes of the KV, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pluggy
import pytest
from pydantic import ValidationError

from paceline.api import KVGroup, PluginError, TargetFacts, hooks
from paceline_draft_model import plugin
from paceline_draft_model.plugin import DraftModelOptions, paceline_proposers

LLAMA = {
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


def options(**settings: Any) -> DraftModelOptions:
    return DraftModelOptions.model_validate({"model": "target", **settings})


def group_of(model: str, target: TargetFacts) -> KVGroup:
    (spec,) = paceline_proposers()
    (group,) = spec.describe(options(model=model), target).kv_groups
    return group


def write_config(folder: Path, **changes: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return str(folder)


def sizes(group: KVGroup) -> tuple[int, ...]:
    return group.num_layers, group.num_kv_heads, group.key_size, group.value_size


@dataclasses.dataclass
class FakeContext:
    """Hands out a model of a given vocabulary, and remembers what was asked for."""

    target: TargetFacts
    draft_vocab_size: int
    tokenizer: Any = None
    draft_tokenizer: Any = None
    tokenizer_fingerprint: str = "of the draft"
    asked: list[tuple[str, str, Any]] = dataclasses.field(default_factory=list)

    def load_model(self, path: str, kv_group: str, layers: Any = None) -> Any:
        self.asked.append((path, kv_group, layers))
        return SimpleNamespace(
            vocab_size=self.draft_vocab_size,
            max_positions=64,
            tokenizer=self.draft_tokenizer,
            tokenizer_fingerprint=self.tokenizer_fingerprint,
        )


def test_declaration(target: TargetFacts) -> None:
    manager = pluggy.PluginManager("paceline")
    manager.add_hookspecs(hooks)
    manager.register(plugin)
    manager.check_pending()
    ((spec,),) = manager.hook.paceline_proposers()
    assert (spec.name, spec.requires_api) == ("draft_model", ">=0.1,<0.2")
    capabilities = spec.describe(options(), target)
    assert capabilities.max_tokens == target.max_model_len - 1
    assert capabilities.lookahead_slots(4) == 4
    assert [group.name for group in capabilities.kv_groups] == ["draft_model"]


def test_the_target_as_its_own_draft_has_its_sizes(target: TargetFacts) -> None:
    group = group_of("target", target)
    assert sizes(group) == (3, 2, 24, 24)
    assert group.dtype == "float32"


def test_sizes_that_a_configuration_leaves_out(target: TargetFacts) -> None:
    config = {name: value for name, value in target.config.items() if name not in ("head_dim", "num_key_value_heads")}
    assert sizes(group_of("target", dataclasses.replace(target, config=config))) == (3, 4, 16, 16)


def test_sizes_come_from_the_draft_models_own_configuration(target: TargetFacts, tmp_path: Path) -> None:
    model = write_config(tmp_path / "draft", num_key_value_heads=2, head_dim=6)
    group = group_of(model, dataclasses.replace(target, dtype="bfloat16"))
    assert sizes(group) == (1, 2, 6, 6)
    assert group.dtype == "bfloat16"


def test_defaults_come_from_the_models_class(target: TargetFacts, tmp_path: Path) -> None:
    model = write_config(tmp_path / "qwen", model_type="qwen3", num_key_value_heads=2)
    assert sizes(group_of(model, target)) == (1, 2, 128, 128)  # Qwen3's heads are 128 wide unless it says otherwise


def test_a_multimodal_configuration_gives_its_language_model(target: TargetFacts, tmp_path: Path) -> None:
    language = {**LLAMA, "model_type": "gemma3_text", "num_key_value_heads": 1, "head_dim": 8}
    folder = tmp_path / "draft"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": language}))
    assert sizes(group_of(str(folder), target)) == (1, 1, 8, 8)


def test_fingerprint_tells_models_apart(target: TargetFacts, tmp_path: Path) -> None:
    model = write_config(tmp_path / "draft")
    weights = tmp_path / "draft" / "model.safetensors"
    weights.write_bytes(b"one")
    first = group_of(model, target).fingerprint
    assert group_of(model, target).fingerprint == first
    others = [
        group_of("target", target).fingerprint,
        group_of("target", dataclasses.replace(target, weights_fingerprint="cd")).fingerprint,
        group_of("target", dataclasses.replace(target, config={**target.config, "rope_theta": 5.0})).fingerprint,
        group_of(model, dataclasses.replace(target, dtype="float16")).fingerprint,
    ]
    weights.write_bytes(b"other")
    others.append(group_of(model, target).fingerprint)
    others.append(group_of(write_config(tmp_path / "draft", rope_theta=5.0), target).fingerprint)
    assert len({first, *others}) == 7


def test_an_unreadable_model_is_refused(target: TargetFacts, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(PluginError, match=rf'draft model "{empty}" cannot be read: .*give a folder, a GGUF file'):
        group_of(str(empty), target)


def test_a_missing_gguf_file_is_refused(target: TargetFacts, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r'nothing\.gguf" cannot be read'):
        group_of(str(tmp_path / "nothing.gguf"), target)


def test_an_unknown_architecture_is_refused(target: TargetFacts, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"cannot be read: .*no_such_model"):
        group_of(write_config(tmp_path / "draft", model_type="no_such_model"), target)


def test_a_model_without_attention_heads_is_refused(target: TargetFacts) -> None:
    config = {name: value for name, value in target.config.items() if name != "num_attention_heads"}
    words = r'draft model "target" gives num_attention_heads = None.*choose a causal LM with ordinary attention'
    with pytest.raises(PluginError, match=words):
        group_of("target", dataclasses.replace(target, config=config))


@pytest.mark.parametrize("draft_vocab_size", [11, 13])
def test_a_vocabulary_as_the_targets_is_accepted_padded_or_not(target: TargetFacts, draft_vocab_size: int) -> None:
    (spec,) = paceline_proposers()
    context = FakeContext(target, draft_vocab_size)
    spec.build(options(model="some/draft"), context)
    assert context.asked == [("some/draft", "draft_model", None)]


@pytest.mark.parametrize("draft_vocab_size", [10, 12, 14])
def test_another_vocabulary_is_refused_with_both_sizes(target: TargetFacts, draft_vocab_size: int) -> None:
    (spec,) = paceline_proposers()
    words = rf'draft model "some/draft" has a vocabulary of {draft_vocab_size} ids, the target one of 11, .*; choose'
    with pytest.raises(PluginError, match=words):
        spec.build(options(model="some/draft"), FakeContext(target, draft_vocab_size))


@pytest.mark.parametrize("sampling", ["coupled", "greedy"])
def test_sampling_reaches_the_proposer(toy_engine, toy_model, toy_request, target: TargetFacts, sampling: str) -> None:
    (spec,) = paceline_proposers()
    model, request = toy_model(), toy_request("a", [1, 2], is_sampled=True)
    context = SimpleNamespace(target=target, tokenizer=None, load_model=lambda path, kv_group, layers: model)
    drafts = spec.build(options(sampling=sampling), context).propose(toy_engine.propose_batch([request], [5]))
    assert drafts.tokens.tolist() == [request.rollout(5, sampling)]
    assert np.all(drafts.tokens < target.vocab_size)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "target", "vocabulary": "other"}, ["vocabulary", "'same', 'intersect' or 'text'"]),
        ({"model": "target", "vocabulary": "text", "sampling": "coupled"}, ["drafts greedily", "leave sampling out"]),
        ({"model": "target", "min_confidence": 1.5}, ["min_confidence", "less than or equal to 1"]),
        ({"model": "target", "layers": "0-"}, ["'0-' is no list of layers", '"0-7"']),
        ({"model": "target", "layers": "3-1"}, ["[] is no list of layers", "at least one"]),
        ({"model": "target", "layers": [1, 1]}, ["[1, 1] is no list of layers", "ascending"]),
        ({"model": "target", "layers": [-1]}, ["[-1] is no list of layers", "from 0 on"]),
        ({"model": "some/draft", "layers": [0]}, ["layers are those of the target", 'model="target"', "some/draft"]),
        ({}, ["model", "required"]),
        ({"model": ""}, ["model", "at least 1 character"]),
        ({"model": "target", "sampling": "random"}, ["sampling", "'coupled' or 'greedy'"]),
        ({"model": "target", "modle": "x"}, ["modle", "not permitted"]),
    ],
)
def test_bad_options_are_refused(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValidationError) as refusal:
        DraftModelOptions.model_validate(settings)
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_defaults() -> None:
    given = options()
    assert (given.sampling, given.vocabulary, given.min_confidence, given.layers) == ("coupled", "same", 0.0, None)


@pytest.mark.parametrize(
    ("written", "layers"),
    [("0-2", (0, 1, 2)), ("5", (5,)), (5, (5,)), (" 0 - 1, 4,7-8 ", (0, 1, 4, 7, 8)), ([0, 3], (0, 3))],
)
def test_lists_of_layers(written: Any, layers: tuple[int, ...]) -> None:
    assert options(layers=written).layers == layers


def test_layers_size_the_group_and_are_in_its_fingerprint(target: TargetFacts) -> None:
    (spec,) = paceline_proposers()
    groups = [spec.describe(options(layers=layers), target).kv_groups[0] for layers in (None, "0-1", "1-2", "0-2")]
    assert [group.num_layers for group in groups] == [3, 2, 2, 3]
    assert len({group.fingerprint for group in groups}) == 4
    with pytest.raises(PluginError, match=r'layer 3 of "target" is to draft, but it has layers 0 to 2 only'):
        spec.describe(options(layers="1-3"), target)


def test_layers_reach_the_loader(target: TargetFacts) -> None:
    (spec,) = paceline_proposers()
    context = FakeContext(target, 11)
    spec.build(options(layers="0,2"), context)
    assert context.asked == [("target", "draft_model", (0, 2))]


@pytest.mark.parametrize(("vocabulary", "private"), [("same", False), ("intersect", True), ("text", True)])
def test_a_vocabulary_of_its_own_has_slots_of_its_own(target: TargetFacts, vocabulary: str, private: bool) -> None:
    (spec,) = paceline_proposers()
    capabilities = spec.describe(options(vocabulary=vocabulary), target)
    assert capabilities.kv_groups[0].private is private
    assert capabilities.lookahead_slots(4) == (0 if private else 4)


@pytest.mark.parametrize("vocabulary", ["intersect", "text"])
def test_vocabularies_cannot_meet_without_tokenizers(target: TargetFacts, byte_level: Any, vocabulary: str) -> None:
    (spec,) = paceline_proposers()
    given = options(model="some/draft", vocabulary=vocabulary)
    with pytest.raises(PluginError, match=rf'"{vocabulary}" compares tokenizers, and the target has none'):
        spec.build(given, FakeContext(target, 11))
    with pytest.raises(PluginError, match=r'and draft model "some/draft" has none; put it beside the weights'):
        spec.build(given, FakeContext(target, 11, tokenizer=byte_level("ab")))


def test_another_tokenizer_is_refused_at_its_first_other_token(target: TargetFacts, byte_level: Any) -> None:
    (spec,) = paceline_proposers()
    given, own = options(model="some/draft"), byte_level("abcdefghijk")

    def build(other: Any, size: int = 11) -> None:
        spec.build(given, FakeContext(target, size, tokenizer=own, draft_tokenizer=other))

    build(byte_level("abcdefghijk"))
    build(byte_level("abcdefghijk"), size=64)  # padded
    build(byte_level("abcdefghijklm"), size=13)  # what only the draft model has is never drafted
    words = (
        r"11 tokens, the target 11, and id 3 is 'e' for the draft model, 'd' for the target; choose .*intersect.*text"
    )
    with pytest.raises(PluginError, match=rf'draft model "some/draft" has another tokenizer: {words}'):
        build(byte_level("abcedfghijk"))
    with pytest.raises(PluginError, match=r"5 tokens, the target 11, and id 5 is nothing for the draft model, 'f' for"):
        build(byte_level("abcde"))
    with pytest.raises(PluginError, match=r'"some/draft" embeds 9 ids, the target has 11; choose'):
        build(byte_level("abcdefghijk"), size=9)


def test_the_same_tokenizer_is_not_read(target: TargetFacts) -> None:
    (spec,) = paceline_proposers()
    known = dataclasses.replace(target, tokenizer_fingerprint="aa")
    spec.build(options(), FakeContext(known, 11, object(), object(), tokenizer_fingerprint="aa"))


def test_the_plugin_module_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, paceline_draft_model.plugin; print({'torch', 'transformers'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "set()"


def test_a_chats_first_token_is_not_taken_for_one_that_the_tokenizer_puts_there(
    target: TargetFacts, byte_level: Any
) -> None:
    (spec,) = paceline_proposers()
    own, other = byte_level("ab", special=["<s>"]), byte_level("ba", special=["<s>"])
    own.bos_token = other.bos_token = "<s>"
    context = FakeContext(target, 3, tokenizer=own, draft_tokenizer=other)
    text = spec.build(options(model="some/draft", vocabulary="text"), context)._text(SimpleNamespace(request_id="a"))
    assert text.tokens(np.array([2, 0, 1]))[0].tolist() == [2, 1, 0]
