"""Every published format gives the logits of a plain implementation; what does not fit is refused in words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.api import TargetFacts
from paceline_eagle.checkpoint import find_head, load_head, save_head
from paceline_eagle.head import Head

NUM_ROWS = 7
AUX = {"eagle_aux_hidden_state_layer_ids": [1, 3]}
PUBLISHED: dict[str, dict[str, Any]] = {
    "eagle": {"kind": "eagle"},
    "eagle_with_bias": {"kind": "eagle", "bias": True},
    "eagle_of_qwen": {"kind": "eagle", "layer": {"attention_bias": True}},
    "eagle3": {"kind": "eagle3"},
    "eagle3_embedding": {"kind": "eagle3", "own_embedding": True},
    "vllm": {"kind": "vllm_eagle3"},
    "speculators": {"kind": "speculators_eagle3", **AUX},
    "speculators_residual": {"kind": "speculators_eagle3", "norm_before_residual": True},
    "speculators_norm_before_fc": {"kind": "speculators_eagle3", "norm_before_fc": True},
    "speculators_fc_norm": {"kind": "speculators_eagle3", "fc_norm": True, **AUX},
    "speculators_norm_output": {"kind": "speculators_eagle3", "norm_output": True},
    "speculators_qwen3": {"kind": "speculators_eagle3", "layer": {"model_type": "qwen3", "head_dim": 8}},
    "speculators_older": {"kind": "speculators_eagle", "fusion_bias": True, "layernorms": True},
    "speculators_older_plain": {"kind": "speculators_eagle", "layernorms": False},
}


def dense(keys_of: list[tuple[Tensor, Tensor]]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Causal attention over what was fed before and now."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys_of.append((key, value))
        keys, values = (torch.cat(side) for side in zip(*keys_of, strict=True))
        group = query.shape[1] // key.shape[1]
        query, keys, values = (
            each.transpose(0, 1)
            for each in (query, keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1))
        )
        mask = torch.ones(query.shape[1], keys.shape[1], dtype=torch.bool).tril(keys.shape[1] - query.shape[1])
        return torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask).transpose(0, 1)

    return attend


def logits_of(head: Head, tokens: Tensor, features: list[Tensor], embedding: Tensor, lm_head: Tensor) -> Tensor:
    """Logits after the last true row, and after one more step on the head's own state."""
    embed = embedding if head.embed_tokens is None else head.embed_tokens.weight
    attend = dense([])
    states = head(embed[tokens[:-1]], head.fuse(features), torch.arange(len(tokens) - 1), attend)
    more = head(embed[tokens[-1:]], states[-1:], torch.tensor([len(tokens) - 1]), attend)
    both = torch.cat([states[-1:], more])
    return head.readout(both) @ lm_head.T if head.lm_head is None else head.logits(both)


@pytest.mark.parametrize("as_bin", [False, True])
@pytest.mark.parametrize("name", PUBLISHED)
def test_logits_are_those_of_a_plain_implementation(
    checkpoint, plain_head, target: TargetFacts, tmp_path: Path, name: str, as_bin: bool
) -> None:
    published = checkpoint(**PUBLISHED[name])
    head = load_head(published.write(tmp_path, as_bin), target)
    torch.manual_seed(1)
    embedding, lm_head = torch.randn(96, 32), torch.randn(96, 32)
    tokens = torch.randint(0, 96, (NUM_ROWS + 1,))
    features = [torch.randn(NUM_ROWS, 32) for _ in head.config.aux_layers]

    plain = plain_head(published, embedding, lm_head)
    entries, fused = plain.entries(), plain.fuse(features)
    for row in range(NUM_ROWS):
        state = plain.extend(entries, int(tokens[row]), fused[row], row + 1)
    more = plain.extend(entries, int(tokens[-1]), state, NUM_ROWS + 1)
    wanted = torch.stack([plain.logits(state), plain.logits(more)])

    torch.testing.assert_close(logits_of(head, tokens, features, embedding, lm_head), wanted, rtol=2e-4, atol=2e-4)
    ids = torch.arange(96) if head.draft_to_target is None else head.draft_to_target
    assert ids.tolist() == plain.ids.tolist()


def test_features_that_a_head_reads(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    def layers_of(kind: str, **settings: Any) -> tuple[int | str, ...]:
        return find_head(checkpoint(kind, **settings).write(tmp_path / kind), target).config.aux_layers

    assert layers_of("eagle") == ("final",)
    assert layers_of("eagle3") == (2, 3, 3)
    assert layers_of("speculators_eagle3", **AUX) == (1, 3)
    assert layers_of("vllm_eagle3", eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 4, 5]}) == (0, 4, 5)


ROPES = [
    {"rope_theta": 7.0},
    {"rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_parameters": {"rope_theta": 7.0, "rope_type": "linear", "factor": 2.0}},
]


@pytest.mark.parametrize("written", ROPES)
def test_rope_of_older_and_newer_configurations(checkpoint, target: TargetFacts, tmp_path: Path, written: dict) -> None:
    rope = find_head(checkpoint("eagle", layer=written).write(tmp_path), target).config.rope
    scaled = {} if written == ROPES[0] else {"factor": 2.0}
    assert rope == {"rope_theta": 7.0, "rope_type": "linear" if scaled else "default"} | scaled


def test_weights_in_several_files(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    published = checkpoint("eagle3")
    whole = load_head(published.write(tmp_path / "whole"), target).state_dict()
    names = sorted(published.tensors)
    halves = [dict.fromkeys(names[:7]), dict.fromkeys(names[7:])]
    folder = Path(published.write(tmp_path / "halves"))
    (folder / "model.safetensors").unlink()
    for number, half in enumerate(halves, start=1):
        save_file({name: published.tensors[name] for name in half}, folder / f"model-0000{number}-of-00002.safetensors")
    loaded = load_head(str(folder), target).state_dict()
    assert loaded.keys() == whole.keys()
    assert all(torch.equal(loaded[name], whole[name]) for name in whole)


@pytest.mark.parametrize("written", ["eagle", "speculators"])
@pytest.mark.parametrize("variants", [{}, {"norm_before_residual": True, "fc_norm": True, "norm_output": True}])
def test_a_written_head_is_read_back(
    checkpoint, target: TargetFacts, tmp_path: Path, written: Any, variants: dict
) -> None:
    published = checkpoint(
        "speculators_eagle3", layer={"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, **variants
    )
    head = load_head(published.write(tmp_path / "first"), target)
    save_head(head, tmp_path / "second", target_name="some/model", format=written, dtype=torch.float32)
    again = load_head(str(tmp_path / "second"), target)
    assert again.config == head.config
    assert torch.equal(again.draft_to_target, head.draft_to_target)
    assert all(torch.equal(tensor, head.state_dict()[name]) for name, tensor in again.state_dict().items())
    raw = json.loads((tmp_path / "second" / "config.json").read_text())
    assert raw["architectures"] == (["LlamaForCausalLMEagle3"] if written == "eagle" else ["Eagle3DraftModel"])


def test_a_head_comes_in_the_targets_dtype(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    folder = checkpoint("eagle3").write(tmp_path)
    head = load_head(folder, dataclasses.replace(target, dtype="bfloat16"))
    assert {tensor.dtype for tensor in head.state_dict().values()} == {torch.bfloat16}
    assert head.draft_to_target.dtype == torch.int64


def test_the_fingerprint_follows_the_content(checkpoint, target: TargetFacts, tmp_path: Path) -> None:
    digests = [
        find_head(checkpoint("eagle3", **settings).write(tmp_path / folder), target).fingerprint
        for folder, settings in {"a": {}, "b": {}, "c": {"seed": 1}, "d": {"norm_before_residual": True}}.items()
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
