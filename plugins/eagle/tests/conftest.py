"""Checkpoints in the published formats, and a target that they fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.api import TargetFacts

HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, INTERMEDIATE = 32, 4, 2, 8, 48
VOCAB, DRAFT_VOCAB, NUM_LAYERS = 96, 40, 6

LAYER_PREFIX = {
    "eagle": "layers.0.",
    "eagle3": "midlayer.",
    "vllm_eagle3": "model.layers.0.",
    "speculators_eagle": "transformer.",
    "speculators_eagle3": "layers.0.",
}


@dataclass
class Checkpoint:
    """A head as its authors would publish it: ``config.json`` and tensors, by their names."""

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def prefix(self) -> str:
        return LAYER_PREFIX[self.kind]

    @property
    def layer_config(self) -> dict[str, Any]:
        return self.config.get("transformer_layer_config", self.config)

    def write(self, folder: Path, as_bin: bool = False) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if as_bin:
            torch.save(self.tensors, folder / "pytorch_model.bin")
        else:
            save_file(self.tensors, folder / "model.safetensors")
        return str(folder)


def layer_config(**changes: Any) -> dict[str, Any]:
    sizes = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "vocab_size": VOCAB,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
    }
    return sizes | changes


def published_config(kind: str, variants: Mapping[str, Any], layer: dict[str, Any]) -> dict[str, Any]:
    if kind == "eagle":
        return {"architectures": ["LlamaForCausalLM"], **layer, **variants}
    if kind in ("eagle3", "vllm_eagle3"):
        return {"architectures": ["LlamaForCausalLMEagle3"], **layer, "draft_vocab_size": DRAFT_VOCAB, **variants}
    nested = {"speculators_version": "0.3.0", "speculators_config": {"verifier": {"name_or_path": "some/model"}}}
    if kind == "speculators_eagle":
        return nested | {"speculators_model_type": "eagle", "transformer_layer_config": layer, **variants}
    eagle3 = {"speculators_model_type": "eagle3", "draft_vocab_size": DRAFT_VOCAB, "target_hidden_size": None}
    return nested | eagle3 | {"transformer_layer_config": layer, **variants}


def published_tensors(kind: str, config: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Tensor]:
    def weight(*shape: int) -> Tensor:
        return torch.randn(shape) / shape[-1] ** 0.5

    def norm(size: int = HIDDEN) -> Tensor:
        return 0.5 + torch.rand(size)

    is_eagle3 = kind.endswith("eagle3")
    aux = config.get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0)
    width = 2 * HIDDEN if is_eagle3 else HIDDEN
    parts = {
        "self_attn.q_proj.weight": weight(HEADS * HEAD_SIZE, width),
        "self_attn.k_proj.weight": weight(KV_HEADS * HEAD_SIZE, width),
        "self_attn.v_proj.weight": weight(KV_HEADS * HEAD_SIZE, width),
        "self_attn.o_proj.weight": weight(HIDDEN, HEADS * HEAD_SIZE),
        "mlp.gate_proj.weight": weight(INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": weight(INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": weight(HIDDEN, INTERMEDIATE),
        "post_attention_layernorm.weight": norm(),
    }
    if layer["model_type"] == "qwen3":
        parts |= {"self_attn.q_norm.weight": norm(HEAD_SIZE), "self_attn.k_norm.weight": norm(HEAD_SIZE)}
    if layer.get("attention_bias"):
        parts |= {f"self_attn.{name}_proj.bias": torch.randn(HEADS * HEAD_SIZE) for name in "qo"}
        parts |= {f"self_attn.{name}_proj.bias": torch.randn(KV_HEADS * HEAD_SIZE) for name in "kv"}
    if is_eagle3:
        parts |= {"hidden_norm.weight": norm(), "input_layernorm.weight": norm()}
    tensors = {LAYER_PREFIX[kind] + name: tensor for name, tensor in parts.items()}
    if not is_eagle3:
        fc = "fusion_fc" if kind == "speculators_eagle" else "fc"
        tensors[f"{fc}.weight"] = weight(HIDDEN, 2 * HIDDEN)
        if config.get("fusion_bias", config.get("bias")):
            tensors[f"{fc}.bias"] = torch.randn(HIDDEN)
        if kind == "eagle":
            tensors["embed_tokens.weight"] = weight(VOCAB, HIDDEN)
        if config.get("layernorms"):
            tensors["transformer.input_layernorm.weight"] = norm()
            tensors |= {name: norm() for name in ("embedding_layernorm.weight", "pre_lm_head_layernorm.weight")}
        return tensors
    prefix = "model." if kind == "vllm_eagle3" else ""
    tensors |= {f"{prefix}fc.weight": weight(HIDDEN, len(aux) * HIDDEN), f"{prefix}norm.weight": norm()}
    tensors["lm_head.weight"] = weight(DRAFT_VOCAB, HIDDEN) * 4
    if config.get("norm_before_fc"):
        tensors["input_norm.weight"] = norm(len(aux) * HIDDEN)
    if config.get("fc_norm"):
        tensors |= {f"fc_norm.{index}.weight": norm() for index in range(len(aux))}
    ids = torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values
    tensors["draft_id_to_target_id" if kind == "vllm_eagle3" else "d2t"] = ids - torch.arange(DRAFT_VOCAB)
    if kind != "vllm_eagle3":
        tensors["t2d"] = torch.isin(torch.arange(VOCAB), ids)
    return tensors


@pytest.fixture
def checkpoint() -> Callable[..., Checkpoint]:
    """``(kind, layer={}, own_embedding=False, seed=0, **configuration) -> Checkpoint`` with random weights."""

    def make(
        kind: str, layer: Mapping[str, Any] | None = None, own_embedding: bool = False, seed: int = 0, **variants: Any
    ) -> Checkpoint:
        torch.manual_seed(seed)
        made = layer_config(**(layer or {}))
        config = published_config(kind, variants, made)
        tensors = published_tensors(kind, config, made)
        if own_embedding:
            tensors["embed_tokens.weight"] = torch.randn(VOCAB, HIDDEN)
        return Checkpoint(kind, config, tensors)

    return make


@pytest.fixture
def checkpoint_type() -> type[Checkpoint]:
    return Checkpoint


@pytest.fixture
def target() -> TargetFacts:
    return TargetFacts(
        config={"vocab_size": VOCAB},
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_layers=NUM_LAYERS,
        max_model_len=128,
        max_num_seqs=8,
        block_size=8,
        dtype="float32",
        device="cpu",
        numerics="exact",
        tokenizer_fingerprint="",
        weights_fingerprint="ab",
    )


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a random Llama that these heads fit."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    folder = tmp_path_factory.mktemp("target")
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)
