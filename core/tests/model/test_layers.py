"""Some layers of a model against a plain transformers model that has no others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from paceline.model.errors import UnsupportedModelError
from paceline.model.layers import with_layers
from paceline.model.loading import LoadedModel, load_model

pytestmark = pytest.mark.usefixtures("either_kernels")

NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZES = {
    **NO_SPECIAL_TOKENS,
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}
TYPES = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", SIZES),
    "mistral": ("mistral", {**SIZES, "sliding_window": 9}),
    "gemma3": (
        "gemma3_text",
        {**SIZES, "head_dim": 16, "sliding_window": 9, "query_pre_attn_scalar": 7, "layer_types": TYPES},
    ),
    "opt": (
        "opt",
        {
            **NO_SPECIAL_TOKENS,
            "vocab_size": 96,
            "hidden_size": 64,
            "ffn_dim": 80,
            "num_attention_heads": 4,
            "max_position_embeddings": 128,
            "init_std": 0.1,
        },
    ),
    "gpt2": ("gpt2", {**NO_SPECIAL_TOKENS, "vocab_size": 96, "n_embd": 64, "n_head": 4, "n_positions": 128}),
}
IDS = np.random.default_rng(3).integers(0, 96, 33).tolist()


def config_of(name: str, layer_ids: Sequence[int]) -> PretrainedConfig:
    kind, settings = KINDS[name]
    types = settings.get("layer_types")
    chosen = {} if types is None else {"layer_types": [types[layer_id] for layer_id in layer_ids]}
    return AutoConfig.for_model(kind, **{**settings, **chosen}, num_hidden_layers=len(layer_ids))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in made:
            torch.manual_seed(1)
            model = AutoModelForCausalLM.from_config(config_of(name, range(4)))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            made[name] = tmp_path_factory.mktemp(name)
            model.save_pretrained(made[name])
        return made[name]

    return path


def truncated_logits(folder: Path, name: str, layer_ids: Sequence[int], ids: list[int]) -> torch.Tensor:
    """Of a model that was made with these layers only, given their weights under its own numbers."""
    renumbered = {}
    for key, value in AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict().items():
        found = re.search(r"\.(?:layers|h)\.(\d+)\.", key)
        if found is None:
            renumbered[key] = value
        elif int(found[1]) in layer_ids:
            start, stop = found.span(1)
            renumbered[f"{key[:start]}{layer_ids.index(int(found[1]))}{key[stop:]}"] = value
    model = AutoModelForCausalLM.from_config(config_of(name, layer_ids)).eval()
    model.load_state_dict(renumbered)
    with torch.inference_mode():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("layer_ids", [(0, 1), (1, 2), (0, 3), (3,), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_layers_give_the_logits_of_a_model_that_has_no_others(
    folder: Callable[[str], Path], sequences: Any, name: str, layer_ids: tuple[int, ...], numerics: str
) -> None:
    part = with_layers(load_model(str(folder(name)), numerics=numerics), layer_ids)
    paged = sequences(part)
    assert len(paged.runner._layers) == len(layer_ids)
    got = torch.cat([paged.run([(0, start, IDS[start : start + 11])]).logits for start in (0, 11, 22)])
    want = truncated_logits(folder(name), name, layer_ids, IDS)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=3e-4)


@pytest.fixture(scope="module")
def llama(folder: Callable[[str], Path]) -> LoadedModel:
    return load_model(str(folder("llama")))


def test_weights_are_shared_and_the_whole_model_is_as_before(llama: LoadedModel, sequences: Any) -> None:
    before = sequences(llama).run([(0, 0, IDS)]).logits
    part = with_layers(llama, [1, 3])
    taps = sequences(part, taps=(0, 1, "final"))
    assert taps.run([(0, 0, IDS)]).features.keys() == {0, 1, "final"}
    own = {parameter.data_ptr() for parameter in llama.model.parameters()}
    assert {parameter.data_ptr() for parameter in part.model.parameters()} < own
    assert llama.config.num_hidden_layers == 4 and part.config.num_hidden_layers == 2
    assert torch.equal(sequences(llama).run([(0, 0, IDS)]).logits, before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in llama.model.modules())


@pytest.mark.parametrize("layer_ids", [[], [4], [-1, 0], [1, 0], [2, 2]], ids=str)
def test_layers_that_are_not_there_are_refused(llama: LoadedModel, layer_ids: list[int]) -> None:
    words = rf"layers {re.escape(str(layer_ids))} of .* were asked for; give some of its layers 0 to 3, ascending"
    with pytest.raises(UnsupportedModelError, match=words):
        with_layers(llama, layer_ids)
