"""The load check passes sound models and refuses planted faults, each by the comparison that is there for it."""

from __future__ import annotations

import pytest
from torch import nn
from transformers import AutoConfig, GptOssConfig, LlamaConfig

from paceline.model import architecture
from paceline.model.bridge import ATTENTION_NAME
from paceline.model.errors import LoadCheckError, UnsupportedModelError
from paceline.model.load_check import check_model
from paceline.model.loading import load_model
from paceline.ops.select import Ops, select_ops

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
    """The mate's position alone must betray it, once the refusal by configuration is taken away."""
    monkeypatch.setattr("paceline.model.loading.refuse_unsupported_config", lambda config, name: None)
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    sizes = tiny_sizes | {"max_position_embeddings": 128}
    loaded = load_model(str(save_checkpoint(LlamaConfig(**sizes, rope_parameters=rope), tmp_path)))
    check(loaded, max_model_len=128)
    with pytest.raises(LoadCheckError, match="beside a mate at position 499"):
        check(loaded)


def test_exact_numerics_refuse_what_fast_numerics_allow(fresh):
    """A plain linear among the exact ones: right within tolerance, but its bits follow the number of rows."""
    loaded = fresh(numerics="exact")
    for layer in loaded.model.model.layers:
        exact = layer.mlp.down_proj
        layer.mlp.down_proj = nn.Linear(exact.in_features, exact.out_features, bias=False)
        layer.mlp.down_proj.weight.data = exact.weight_io.data.t().contiguous()
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

    def short_sighted(q, k_cache, v_cache, batch, scale, window):
        return right(q, k_cache, v_cache, batch, scale, 40)

    loaded = fresh()
    with pytest.raises(LoadCheckError, match="the paged forward and the model's own differ"):
        check_model(loaded, Ops("fast", short_sighted), MAX_MODEL_LEN)


def test_nan_is_refused(fresh):
    loaded = fresh()
    loaded.model.model.layers[0].mlp.down_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(LoadCheckError, match="differ by nan"):
        check(loaded)


def test_an_lm_head_that_is_not_the_whole_end_is_refused(tiny_sizes, save_checkpoint, tmp_path):
    """Granite divides its logits after the LM head."""
    config = AutoConfig.for_model("granite", **tiny_sizes, logits_scaling=8.0)
    with pytest.raises(LoadCheckError, match="the final hidden states, projected, and the logits differ"):
        check(load_model(str(save_checkpoint(config, tmp_path))))


def test_embeddings_that_are_not_the_whole_beginning_are_refused(tiny_sizes, save_checkpoint, tmp_path):
    config = AutoConfig.for_model("granite", **tiny_sizes, embedding_multiplier=8.0)
    with pytest.raises(LoadCheckError, match="the embeddings and the hidden states entering layer 0 differ"):
        check(load_model(str(save_checkpoint(config, tmp_path))))


def test_attention_with_sinks_is_refused(tiny_sizes, save_checkpoint, tmp_path):
    config = GptOssConfig(**tiny_sizes, head_dim=16, num_local_experts=2, num_experts_per_tok=1, sliding_window=16)
    with pytest.raises(UnsupportedModelError, match=r'E302: GptOssAttention asks its attention for "s_aux"'):
        check(load_model(str(save_checkpoint(config, tmp_path))))


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
