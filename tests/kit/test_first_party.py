"""Every first-party plugin, and the probes of other tests, conform."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.testing import (
    CommandContract,
    ConstraintContract,
    ControllerContract,
    EvictionPolicyContract,
    IdentityContract,
    ObserverContract,
    ProposerContract,
    tiny_model,
)

HIDDEN, INTERMEDIATE, VOCAB = 32, 48, 257
TARGET = {"model": "target"}
GRAMMAR = {"grammar": 'start: "a" /[b-d]+/ ("e" | "f")'}
TENANTS = (({"tenant": "a"}, {"tenant": "b"}), ({"tenant": "a"}, {}))
UNBOUNDED = {"test_api_range_is_bounded": "a probe of other tests, which goes with the core"}
PROBE = {
    "test_options_are_described": "a probe of the engine's tests, which nobody configures",
    "test_declaring_imports_no_torch": "the module of the probes uses torch itself",
}
WATCHING = {
    **PROBE,
    "test_wants_what_it_takes": "it asks for events that it has no method for, to see that nobody minds",
}


class TestNgram(ProposerContract):
    plugin = "ngram"


class TestDraftModel(ProposerContract):
    plugin = "draft_model"
    options = TARGET


class TestEagle(ProposerContract):
    plugin = "eagle"

    @property
    def options(self) -> dict[str, Any]:  # type: ignore[override]
        return {"model": eagle_head()}


class TestEagleTree(ProposerContract):
    plugin = "eagle"
    num_speculative_tokens = 6

    @property
    def options(self) -> dict[str, Any]:  # type: ignore[override]
        return {"model": eagle_head(), "shape": "tree", "top_k": 2, "depth": 3, "total_tokens": 6}


@functools.cache
def eagle_head() -> str:
    """Folder of a random EAGLE head for the kit's model."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)
    sizes = {
        "fc.weight": (HIDDEN, 2 * HIDDEN),
        "embed_tokens.weight": (VOCAB, HIDDEN),
        "layers.0.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        "layers.0.self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN),
        "layers.0.self_attn.v_proj.weight": (HIDDEN // 2, HIDDEN),
        "layers.0.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        "layers.0.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "layers.0.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "layers.0.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    }
    tensors = {name: torch.randn(shape) / shape[-1] ** 0.5 for name, shape in sizes.items()}
    tensors["layers.0.post_attention_layernorm.weight"] = torch.ones(HIDDEN)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": VOCAB,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
    }
    folder = Path(tiny_model()).parent / "eagle"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


class TestLru(EvictionPolicyContract):
    plugin = "lru"


class TestFixed(ControllerContract):
    plugin = "fixed"


class TestGoodput(ControllerContract):
    plugin = "goodput"


class TestLlguidance(ConstraintContract):
    plugin = "llguidance"
    asks = (GRAMMAR,)


@pytest.mark.usefixtures("probes")
class TestResidue(ConstraintContract):
    plugin = "probes:residue"
    asks = (2, 7)
    expected_failures = UNBOUNDED


@pytest.mark.usefixtures("engine_probes")
class TestTenant(IdentityContract):
    plugin = "kit_probes:tenant"
    apart = TENANTS
    expected_failures = PROBE


@pytest.mark.usefixtures("engine_probes")
class TestWatching(ObserverContract):
    plugin = "kit_probes:watching"
    expected_failures = WATCHING


class TestTrainEagle(CommandContract):
    plugin = "eagle:train"

    @property
    def options(self) -> dict[str, Any]:  # type: ignore[override]
        return {"target": tiny_model(), "output": "head"}
