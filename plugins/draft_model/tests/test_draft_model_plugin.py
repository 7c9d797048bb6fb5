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
    tokenizer_fingerprint: str = ""
    asked: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def load_model(self, path: str, kv_group: str) -> Any:
        self.asked.append((path, kv_group))
        return SimpleNamespace(
            vocab_size=self.draft_vocab_size, max_positions=64, tokenizer_fingerprint=self.tokenizer_fingerprint
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
    assert context.asked == [("some/draft", "draft_model")]


@pytest.mark.parametrize("draft_vocab_size", [10, 12, 14])
def test_another_vocabulary_is_refused_with_both_sizes(target: TargetFacts, draft_vocab_size: int) -> None:
    (spec,) = paceline_proposers()
    words = rf'draft model "some/draft" has a vocabulary of {draft_vocab_size} ids, the target one of 11; choose'
    with pytest.raises(PluginError, match=words):
        spec.build(options(model="some/draft"), FakeContext(target, draft_vocab_size))


def test_another_tokenizer_of_the_same_size_is_refused(target: TargetFacts) -> None:
    (spec,) = paceline_proposers()
    known = dataclasses.replace(target, tokenizer_fingerprint="aaaa")
    spec.build(options(model="some/draft"), FakeContext(known, 11, "aaaa"))
    spec.build(options(model="some/draft"), FakeContext(known, 11, ""))
    words = r'draft model "some/draft" has .* 11 ids, as many as the target, but another tokenizer .*bbbb.*aaaa'
    with pytest.raises(PluginError, match=words):
        spec.build(options(model="some/draft"), FakeContext(known, 11, "bbbb"))


@pytest.mark.parametrize("sampling", ["coupled", "greedy"])
def test_sampling_reaches_the_proposer(toy_engine, toy_model, toy_request, target: TargetFacts, sampling: str) -> None:
    (spec,) = paceline_proposers()
    model, request = toy_model(), toy_request("a", [1, 2], is_sampled=True)
    context = SimpleNamespace(target=target, load_model=lambda path, kv_group: model)
    drafts = spec.build(options(sampling=sampling), context).propose(toy_engine.propose_batch([request], [5]))
    assert drafts.tokens.tolist() == [request.rollout(5, sampling)]
    assert np.all(drafts.tokens < target.vocab_size)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
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


def test_coupled_is_the_default() -> None:
    assert options().sampling == "coupled"


def test_the_plugin_module_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, paceline_draft_model.plugin; print({'torch', 'transformers'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "set()"
