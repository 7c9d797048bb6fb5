"""The load check passes sound models and refuses planted faults, each by the comparison that is there for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AttentionInterface, AutoConfig, LlamaConfig

from paceline.model import architecture, bridge
from paceline.model.bridge import ATTENTION_NAME
from paceline.model.errors import LoadCheckError, UnsupportedModelError
from paceline.model.load_check import check_model
from paceline.model.loading import load_model
from paceline.model.runner import ModelRunner
from paceline.ops.select import Ops, select_ops

pytestmark = pytest.mark.usefixtures("torch_kernels")

MAX_MODEL_LEN = 500


def check(loaded, max_model_len=MAX_MODEL_LEN):
    check_model(loaded, select_ops(loaded.numerics, loaded.device), max_model_len)


@pytest.fixture
def fresh(tiny_path):
    """``(name="llama", numerics="fast") -> LoadedModel`` that a test may spoil."""
    return lambda name="llama", numerics="fast": load_model(str(tiny_path(name)), numerics=numerics)


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("name", ["llama", "llama_tied", "qwen2", "qwen2_window", "qwen3", "mistral", "mistral_window"])
def test_sound_models_pass(name, numerics, tiny_model):
    loaded = tiny_model(name, numerics)
    check(loaded)
    assert loaded.model.config._attn_implementation == ATTENTION_NAME


@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_every_architecture_passes(breadth, numerics, tiny_model):
    check(tiny_model(breadth, numerics))


@pytest.mark.parametrize("max_model_len", [2, 3, 15, 37])
def test_short_contexts_pass(max_model_len, tiny_model):
    check(tiny_model("llama"), max_model_len)


def test_low_precision_passes(tiny_path):
    check(load_model(str(tiny_path("llama")), dtype="bfloat16"))


class BatchScaled(nn.Linear):
    """As int8 with one dynamic scale for the whole batch: the rows share a rounding grid."""

    def forward(self, x):
        scale = x.abs().max() / 127
        return super().forward((x / scale).round() * scale)


def test_scales_that_follow_the_batch_are_refused(fresh):
    loaded = fresh()
    for layer in loaded.model.model.layers:
        layer.mlp.down_proj.__class__ = BatchScaled
    with pytest.raises(
        LoadCheckError, match=r'E304: model ".*" \(LlamaForCausalLM\) failed.*"fast" numerics: .*differ'
    ):
        check(loaded)


def test_rope_that_follows_the_longest_sequence_is_refused(tiny_sizes, save_checkpoint, tmp_path, monkeypatch):
    """The mate's position alone must betray it, once it is no longer fixed."""
    monkeypatch.setattr("paceline.model.loading.fix_rope", lambda model, config, num_positions: None)
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    sizes = tiny_sizes | {"max_position_embeddings": 128}
    loaded = load_model(str(save_checkpoint(LlamaConfig(**sizes, rope_parameters=rope), tmp_path)))
    check(loaded, max_model_len=128)
    with pytest.raises(LoadCheckError, match="beside a mate at position 499"):
        check(loaded)


class Leaky(nn.Module):
    """Lets a trace of the other rows in: within tolerance, but not in the bits."""

    def forward(self, x):
        return nn.functional.silu(x) + 1e-6 * x.mean()


def test_exact_numerics_refuse_what_fast_numerics_allow(fresh):
    loaded = fresh(numerics="exact")
    for layer in loaded.model.model.layers:
        layer.mlp.act_fn = Leaky()
    with pytest.raises(LoadCheckError, match=r'"exact" numerics: a prompt .*allowed is 0; .*numerics="fast"'):
        check(loaded)
    loaded.numerics = "fast"
    check(loaded)


def test_a_window_that_is_not_applied_is_refused(fresh, monkeypatch):
    monkeypatch.setattr("paceline.model.runner.attention_windows", lambda config: [None, None])
    with pytest.raises(LoadCheckError, match="the paged forward and the model's own differ"):
        check(fresh("mistral_window"))


def test_wrong_positions_of_keys_are_refused(fresh):
    """An attention body that sees one key too few."""
    right = select_ops("fast", "cpu").attention

    def short_sighted(q, k_cache, v_cache, batch, scale, window, **scoring):
        return right(q, k_cache, v_cache, batch, scale, 40, **scoring)

    loaded = fresh()
    with pytest.raises(LoadCheckError, match="the paged forward and the model's own differ"):
        check_model(loaded, Ops("fast", short_sighted), MAX_MODEL_LEN)


def test_nan_is_refused(fresh):
    loaded = fresh()
    loaded.model.model.layers[0].mlp.down_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(LoadCheckError, match="differ by nan"):
        check(loaded)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("logits", "the final hidden states, projected, and the logits"),
        ("embed", "the embeddings and the hidden states"),
    ],
)
def test_ends_without_the_scaling_of_the_model_are_refused(end, words, fresh, monkeypatch):
    """Granite scales its embeddings and its logits."""
    plain = {
        "logits": lambda self, hidden: self._model.get_output_embeddings()(hidden),
        "embed": lambda self, ids: self._model.get_input_embeddings()(ids),
    }
    monkeypatch.setattr(ModelRunner, end, torch.inference_mode()(plain[end]))
    with pytest.raises(LoadCheckError, match=f"{words}.* differ"):
        check(fresh("granite"))


@pytest.mark.parametrize("keyword", ["position_bias", "head_mask"])
def test_attention_with_arithmetic_that_is_not_there_is_refused(keyword, fresh):
    loaded = fresh()
    attend = bridge.paged_attention_forward
    AttentionInterface.register(ATTENTION_NAME, lambda *args, **kw: attend(*args, **kw, **{keyword: 1.0}))
    try:
        with pytest.raises(UnsupportedModelError, match=rf'E302: LlamaAttention asks its attention for "{keyword}"'):
            check(loaded)
    finally:
        bridge.register()


def test_a_model_that_drops_keywords_is_refused(fresh, monkeypatch):
    loaded = fresh()
    forward = type(loaded.model).forward
    monkeypatch.setattr(
        type(loaded.model), "forward", lambda self, paceline_step=None, **kwargs: forward(self, **kwargs)
    )
    with pytest.raises(UnsupportedModelError, match=r"LlamaAttention was called without the step.*pass keywords"):
        check(loaded)


def test_bidirectional_attention_is_refused(fresh):
    loaded = fresh()
    loaded.model.model.layers[0].self_attn.is_causal = False
    with pytest.raises(UnsupportedModelError, match="LlamaAttention is not causal"):
        check(loaded)


def test_kv_of_another_shape_is_refused(fresh):
    loaded = fresh()
    loaded.config.num_key_value_heads = 4
    with pytest.raises(UnsupportedModelError, match=r"layer 0 \(LlamaAttention\) makes keys \(2, 16\).*\(4, 16\)"):
        check(loaded)


def test_windows_by_layer():
    qwen = AutoConfig.for_model("qwen2", num_hidden_layers=3, use_sliding_window=True, max_window_layers=1)
    assert architecture.attention_windows(qwen) == [None, 4096, 4096]
    assert architecture.attention_windows(AutoConfig.for_model("mistral", num_hidden_layers=2)) == [4096, 4096]
    assert architecture.attention_windows(AutoConfig.for_model("llama", num_hidden_layers=2)) == [None, None]
