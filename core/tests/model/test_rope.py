"""RoPE whose factors follow the longest sequence of the batch is fixed once for the longest that is served."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoConfig, LlamaConfig

from paceline.model.architecture import max_positions
from paceline.model.errors import UnsupportedModelError
from paceline.model.load_check import check_model
from paceline.model.loading import load_model
from paceline.model.rope import FIXED_KEY, rope_groups
from paceline.ops.select import select_ops

pytestmark = pytest.mark.usefixtures("either_kernels")

DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [3.0 + i for i in range(8)],
    "original_max_position_embeddings": 32,
}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}


def ids_of(count):
    return np.random.default_rng(1).integers(0, 512, count).tolist()


@pytest.fixture
def folder(tiny_sizes, save_checkpoint, tmp_path):
    """``kind -> directory`` of a tiny checkpoint with a RoPE that follows the batch; made for 32 or 128 positions."""

    def path(kind):
        sizes = tiny_sizes | {"max_position_embeddings": 128 if kind == "longrope" else 32}
        layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 20, "head_dim": 16}
        by_layer = {"full_attention": DYNAMIC, "sliding_attention": PLAIN}
        config = {
            "dynamic": lambda: LlamaConfig(**sizes, rope_parameters=DYNAMIC),
            "longrope": lambda: AutoConfig.for_model(
                "phi3", **sizes, original_max_position_embeddings=32, rope_parameters=LONGROPE
            ),
            "by layer": lambda: AutoConfig.for_model("gemma3_text", **sizes, **layers, rope_parameters=by_layer),
        }
        return save_checkpoint(config[kind](), tmp_path)

    return path


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "by layer"])
@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_fixed_factors_are_those_of_the_longest_sequence(kind, numerics, folder, sequences, own_logits):
    """transformers' forward of a sequence of that length picks the same, and here every shorter row has them too."""
    path, ids = folder(kind), ids_of(90)
    loaded = load_model(str(path), numerics=numerics, max_model_len=90)
    paged = sequences(loaded)
    logits = torch.cat([paged.run([(0, start, ids[start : start + 30])]).logits for start in (0, 30, 60)])
    torch.testing.assert_close(logits, own_logits(path, ids, "eager"), rtol=1e-4, atol=1e-4)
    check_model(loaded, select_ops(numerics, "cpu"), 90)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "by layer"])
def test_short_contexts_keep_the_factors_of_short_ones(kind, folder, sequences, own_logits):
    path, ids = folder(kind), ids_of(20)
    loaded = load_model(str(path), max_model_len=32)
    logits = sequences(loaded).run([(0, 0, ids)]).logits
    torch.testing.assert_close(logits, own_logits(path, ids, "eager"), rtol=1e-4, atol=1e-4)
    longer = sequences(load_model(str(path), max_model_len=90)).run([(0, 0, ids)]).logits
    assert (longer - logits).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "by layer"])
def test_the_length_is_a_fact_of_the_configuration(kind, folder):
    """From which cache identities are made. Without a length it is the longest that the model was made for."""
    path = str(folder(kind))
    for given, fixed in ((50, 50), (None, 128), (9999, 128)):
        config = load_model(path, max_model_len=given).config
        assert [group[FIXED_KEY] for group in rope_groups(config) if FIXED_KEY in group] == [fixed]
        assert f"'{FIXED_KEY}': {fixed}" in str(config.to_dict()["rope_parameters"])


def test_rope_that_does_not_follow_the_batch_is_left_alone(tiny_path):
    for name in ("llama", "llama_yarn", "gemma3"):
        loaded = load_model(str(tiny_path(name)), max_model_len=50)
        assert FIXED_KEY not in str(loaded.config.to_dict())


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_refused_where_nothing_can_be_fixed(kind, folder, monkeypatch):
    monkeypatch.setattr("paceline.model.rope._has_following_type", lambda module: False)
    with pytest.raises(UnsupportedModelError, match=rf'E302.*RoPE of type "{kind}".*none of its modules.*"yarn"'):
        load_model(str(folder(kind)))


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        (PLAIN, 64),
        (DYNAMIC, 256),
        ({**PLAIN, "rope_type": "linear", "factor": 4.0}, 64),
        ({**PLAIN, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({**PLAIN, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
    ],
)
def test_longest_sequence(rope, expected, tiny_sizes):
    config = LlamaConfig(**tiny_sizes | {"max_position_embeddings": 64}, rope_parameters=rope)
    assert max_positions(config) == expected


def test_positions_without_a_bound():
    assert max_positions(AutoConfig.for_model("bloom")) is None
