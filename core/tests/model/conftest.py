"""Tiny random checkpoints, and a sequence runner that fills a paged cache of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from paceline.model import loading
from paceline.model.architecture import target_kv_group
from paceline.model.loading import LoadedModel, load_model
from paceline.model.runner import ForwardOutput, ModelRunner
from paceline.ops import select
from paceline.ops.batch import AttentionBatch
from paceline.ops.select import select_ops

TINY_SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 144,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

ARCHITECTURES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**TINY_SIZES),
    "llama_tied": LlamaConfig(**TINY_SIZES, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**TINY_SIZES),
    "qwen2_window": Qwen2Config(**TINY_SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen3": Qwen3Config(**TINY_SIZES, head_dim=32),
    "mistral": MistralConfig(**TINY_SIZES, sliding_window=None),
    "mistral_window": MistralConfig(**TINY_SIZES, sliding_window=9),
}


def llama_with_rope(**rope: Any) -> PretrainedConfig:
    return LlamaConfig(**TINY_SIZES, rope_parameters={"rope_theta": 10000.0, **rope})


NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
OPT_SIZES = {
    **NO_SPECIAL_TOKENS,
    "vocab_size": 512,
    "hidden_size": 72,
    "ffn_dim": 144,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "init_std": 0.1,
}
GPT2_SIZES = {
    **NO_SPECIAL_TOKENS,
    "vocab_size": 512,
    "n_embd": 72,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "initializer_range": 0.1,
}
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
GEMMA_SIZES = {**TINY_SIZES, "head_dim": 24, "sliding_window": 9, "query_pre_attn_scalar": 7}
MOE_SIZES = {**TINY_SIZES, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
GPT_OSS_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}

# Those in which something beyond a Llama is computed. Head sizes: 18 for GPT-2 and OPT, 24 for Gemma and Qwen3-MoE.
BREADTH: dict[str, PretrainedConfig] = {
    "gemma2": AutoConfig.for_model("gemma2", **GEMMA_SIZES, attn_logit_softcapping=1.5, final_logit_softcapping=2.0),
    "gemma3": AutoConfig.for_model(
        "gemma3_text", **GEMMA_SIZES, layer_types=["sliding_attention", "full_attention"], final_logit_softcapping=2.0
    ),
    "phi3": AutoConfig.for_model("phi3", **TINY_SIZES, sliding_window=9),
    "gpt2": AutoConfig.for_model("gpt2", **GPT2_SIZES, scale_attn_by_inverse_layer_idx=True),
    "opt": AutoConfig.for_model("opt", **OPT_SIZES),
    "opt_projected": AutoConfig.for_model("opt", **OPT_SIZES, word_embed_proj_dim=40, do_layer_norm_before=False),
    "mixtral": AutoConfig.for_model("mixtral", **TINY_SIZES, num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": AutoConfig.for_model("qwen2_moe", **MOE_SIZES, num_experts=6, shared_expert_intermediate_size=56),
    "qwen3_moe": AutoConfig.for_model("qwen3_moe", **MOE_SIZES, num_experts=6, head_dim=24, norm_topk_prob=True),
    "gpt_oss": AutoConfig.for_model(
        "gpt_oss",
        **TINY_SIZES,
        num_local_experts=4,
        num_experts_per_tok=2,
        head_dim=16,
        sliding_window=9,
        rope_parameters=GPT_OSS_ROPE,
    ),
    "granite": AutoConfig.for_model("granite", **TINY_SIZES, logits_scaling=8.0, embedding_multiplier=3.0),
    "llama_linear": llama_with_rope(rope_type="linear", factor=4.0),
    "llama_yarn": llama_with_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=128),
    "llama_llama3": llama_with_rope(rope_type="llama3", factor=8.0, **LLAMA3_ROPE),
}
ARCHITECTURES |= BREADTH


def save_tiny(config: PretrainedConfig, folder: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases, norms and sinks begin as constants, under which a missing one would not show.
            if parameter.dim() == 1 or parameter.std() == 0:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    return folder


@dataclass
class Sequences:
    """Sequences on a paged cache; each pass runs rows of several of them."""

    runner: ModelRunner
    block_size: int
    tables: np.ndarray
    known: list[int] = field(default_factory=list)

    def run(self, parts: list[tuple[int, int, list[int]]]) -> ForwardOutput:
        """Run ``(sequence, first position, tokens)`` parts in one pass; logits of every row."""
        positions = np.concatenate([start + np.arange(len(ids)) for _, start, ids in parts])
        row_seq = np.repeat(np.arange(len(parts)), [len(ids) for _, _, ids in parts])
        tables = self.tables[[seq for seq, _, _ in parts]]
        slots = tables[row_seq, positions // self.block_size] * self.block_size + positions % self.block_size
        batch = AttentionBatch.build(
            query_starts=np.concatenate([[0], np.cumsum([len(ids) for _, _, ids in parts])]),
            visible=positions + 1,
            slots=slots,
            block_tables=tables,
            block_size=self.block_size,
        )
        tokens = torch.tensor([token for _, _, ids in parts for token in ids])
        return self.runner.forward(tokens, torch.from_numpy(positions), batch, torch.arange(len(positions)))


def make_sequences(loaded: LoadedModel, taps: tuple[int | str, ...] = (), num_seqs: int = 3) -> Sequences:
    block_size, blocks_per_seq = 4, 32
    group = target_kv_group(loaded.config, dtype=loaded.dtype, fingerprint="")
    shape = (num_seqs * blocks_per_seq, block_size, group.num_kv_heads)
    layers = [
        (torch.zeros(*shape, group.key_size), torch.zeros(*shape, group.value_size)) for _ in range(group.num_layers)
    ]
    tables = np.random.default_rng(0).permutation(num_seqs * blocks_per_seq).reshape(num_seqs, blocks_per_seq)
    ops = select_ops(loaded.numerics, loaded.device)
    return Sequences(ModelRunner(loaded, layers, ops, taps), block_size, tables)


@pytest.fixture(params=BREADTH)
def breadth(request: pytest.FixtureRequest) -> str:
    """The name of each architecture in which something beyond a Llama is computed, in turn."""
    return request.param


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``name -> directory`` of a tiny random checkpoint; made once."""
    made: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in made:
            made[name] = save_tiny(ARCHITECTURES[name], tmp_path_factory.mktemp(name))
        return made[name]

    return path


@pytest.fixture(scope="session")
def tiny_model(tiny_path: Callable[[str], Path]) -> Callable[..., LoadedModel]:
    """``(name, numerics="fast") -> LoadedModel``; loaded once, not to be changed."""
    loaded: dict[tuple[str, str, bool], LoadedModel] = {}

    def model(name: str, numerics: str = "fast") -> LoadedModel:
        key = (name, numerics, loading.native_library() is not None)
        if key not in loaded:
            loaded[key] = load_model(str(tiny_path(name)), numerics=numerics)
        return loaded[key]

    return model


@pytest.fixture
def torch_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the native kernels, as on a machine that cannot build them."""
    for module in (loading, select):
        monkeypatch.setattr(module, "native_library", lambda: None)


@pytest.fixture(params=["native", "torch"])
def either_kernels(request: pytest.FixtureRequest) -> None:
    """With the native kernels, and without them."""
    if request.param == "torch":
        request.getfixturevalue("torch_kernels")
    elif loading.native_library() is None:
        pytest.skip("the native kernels cannot be built here")


@pytest.fixture
def sequences() -> Callable[..., Sequences]:
    """``(loaded, taps=(), num_seqs=3) -> Sequences`` on a fresh cache."""
    return make_sequences


@pytest.fixture
def save_checkpoint() -> Callable[..., Path]:
    """``(config, folder, seed=0) -> folder`` with a random checkpoint of that configuration."""
    return save_tiny


@pytest.fixture
def tiny_sizes() -> dict[str, Any]:
    """Keywords of a tiny configuration; a copy."""
    return dict(TINY_SIZES)


@pytest.fixture
def own_logits() -> Callable[..., torch.Tensor]:
    """``(path, ids, attention="sdpa") -> [len(ids), vocab]``: transformers' own forward of a directory."""

    def logits(path: Path, ids: list[int], attention: str = "sdpa") -> torch.Tensor:
        model = AutoModelForCausalLM.from_pretrained(path, attn_implementation=attention, dtype=torch.float32)
        with torch.inference_mode():
            return model.eval()(input_ids=torch.tensor([ids]), use_cache=False).logits[0]

    return logits
