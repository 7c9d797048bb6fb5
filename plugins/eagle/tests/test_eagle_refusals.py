"""Heads that cannot serve are refused at start, and the message names culprit, value, bound and remedy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.api import PluginError, TargetFacts
from paceline_eagle.checkpoint import load_head


def refusal(published: Any, target: TargetFacts, folder: Path) -> str:
    path = published.write(folder)
    with pytest.raises(PluginError) as caught:
        load_head(path, target)
    assert caught.value.message.startswith(f'EAGLE head "{path}": ')
    return caught.value.message


def test_other_kinds_of_speculators(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    published = checkpoint("speculators_eagle3")
    published.config["speculators_model_type"] = "dflash"
    assert 'speculators_model_type is "dflash"; supported are eagle, eagle3' in refusal(published, target, tmp_path)


def test_no_head_at_all(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    published = checkpoint("eagle")
    published.tensors = {"medusa.0.linear.weight": torch.zeros(2, 2)}
    message = refusal(published, target, tmp_path)
    assert "no EAGLE head among the tensors medusa.0.linear.weight; a head has fc.weight and one layer" in message


def test_missing_and_superfluous_tensors(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    published = checkpoint("eagle3")
    del published.tensors["midlayer.mlp.up_proj.weight"], published.tensors["norm.weight"]
    published.tensors["midlayer.surprise"] = torch.zeros(1)
    message = refusal(published, target, tmp_path)
    assert (
        "EAGLE-3 head there are missing: layer.mlp.up_proj.weight, norm.weight; not part of it: layer.surprise"
        in message
    )


def test_an_input_norm_where_eagle_has_none(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    published = checkpoint("eagle")
    published.tensors["layers.0.input_layernorm.weight"] = torch.ones(32)
    assert "not part of it: layer.input_layernorm.weight" in refusal(published, target, tmp_path)


def test_a_tensor_of_another_shape(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    published = checkpoint("eagle3")
    published.tensors["fc.weight"] = torch.zeros(32, 64)
    message = refusal(published, target, tmp_path)
    assert "the tensor fc.weight has the shape [32, 64], by config.json it must be [32, 96]" in message


def test_one_tensor_under_two_names(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    published = checkpoint("eagle3")
    published.tensors["model.fc.weight"] = published.tensors["fc.weight"].clone()
    assert '"fc.weight" and "model.fc.weight" are the same part of a head' in refusal(published, target, tmp_path)


def test_several_layers(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    published = checkpoint("eagle3", layer={"num_hidden_layers": 2})
    assert "num_hidden_layers is 2; heads of exactly one layer" in refusal(published, target, tmp_path)


def test_a_rope_that_depends_on_the_longest_sequence(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    published = checkpoint("eagle3", layer={"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})
    assert 'RoPE of type "dynamic" is not supported; default, linear, llama3, yarn are' in refusal(
        published, target, tmp_path
    )


def test_a_configuration_without_sizes(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    published = checkpoint("eagle3")
    del published.config["hidden_size"]
    assert "the configuration gives hidden_size = None, which must be a positive integer" in refusal(
        published, target, tmp_path
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": 64}, "features of width 32, the target's are 64 wide; choose a head that was trained for"),
        ({"vocab_size": 90, "config": {}}, "knows 96 token ids, the target 90; choose a head that was trained for"),
        ({"num_layers": 3}, "features that enter layer 3, the target has layers 0 to 2; choose a head"),
    ],
)
def test_a_head_for_another_target(checkpoint, target: TargetFacts, tmp_path: Path, changes: dict, reason: str) -> None:
    published = checkpoint("speculators_eagle3", eagle_aux_hidden_state_layer_ids=[1, 3])
    assert reason in refusal(published, dataclasses.replace(target, **changes), tmp_path)


def test_a_narrow_head_without_an_embedding(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    published = checkpoint("eagle3", target_hidden_size=48)
    published.tensors["fc.weight"] = torch.zeros(32, 3 * 48)
    message = refusal(published, dataclasses.replace(target, hidden_size=48), tmp_path)
    assert "it is 32 wide and has no embedding of its own, the target's is 48 wide" in message


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("missing", "gives logits for 40 of 96 ids, but the table d2t is missing"),
        ("short", "but the table d2t is of the shape [39]"),
        ("far", "the table d2t leads to ids from 0 to 100, the target has 0 to 95"),
        ("ids", "d2t leads to the same id of the target twice; it holds offsets, not ids"),
        ("mask", "d2t and t2d disagree about which of the target's ids the head knows"),
    ],
)
def test_tables_of_ids(checkpoint, target: TargetFacts, tmp_path: Path, fault: str, reason: str) -> None:
    published = checkpoint("eagle3")
    offsets = published.tensors.pop("d2t")
    if fault == "short":
        published.tensors["d2t"] = offsets[:-1].clone()
    elif fault == "far":
        offsets[0], offsets[-1] = 0, 61
        published.tensors["d2t"] = offsets
    elif fault == "ids":
        offsets[1] = offsets[0] - 1
        published.tensors["d2t"] = offsets
    elif fault == "mask":
        published.tensors["d2t"] = offsets
        published.tensors["t2d"] = published.tensors["t2d"].roll(1)
    assert reason in refusal(published, target, tmp_path)


def test_a_damaged_file(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    for as_bin, name in ((False, "model.safetensors"), (True, "pytorch_model.bin")):
        folder = tmp_path / name
        path = checkpoint("eagle").write(folder, as_bin)
        (folder / name).write_bytes((folder / name).read_bytes()[:100])
        with pytest.raises(PluginError, match=r"cannot be read: .*; download it again"):
            load_head(path, target)


def test_a_folder_without_weights_or_configuration(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r'no weights in ".*"; expected model\*\.safetensors or pytorch_model\*\.bin'):
        load_head(str(tmp_path), target)
    checkpoint("eagle").write(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(PluginError, match=r'config\.json" holds a list; it must be an object'):
        load_head(str(tmp_path), target)
    (tmp_path / "config.json").unlink()
    with pytest.raises(PluginError, match=r'config\.json" cannot be read: .*a head comes with its config\.json'):
        load_head(str(tmp_path), target)


def test_a_name_that_leads_nowhere(target: TargetFacts) -> None:
    with pytest.raises(PluginError, match=r'"no/such-head": not found: .*; give a folder, a hub id, or "demo"'):
        load_head("no/such-head", target)
