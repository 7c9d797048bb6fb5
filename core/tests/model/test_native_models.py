"""Models on the native kernels: which run in one call, what they give, and weights of 8 and 4 bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.engine.llm import LLM
from paceline.model import loading, packing
from paceline.model.errors import UnsupportedModelError
from paceline.model.load_check import check_model
from paceline.model.loading import load_model
from paceline.model.packing import pack_linears
from paceline.native.library import native_library
from paceline.ops.nibbles import GROUP, REFINEMENTS, rounded_to_nibbles
from paceline.ops.packed_linear import PackedLinear, rounded
from paceline.ops.select import select_ops
from paceline.sampling.params import SamplingParams

pytestmark = pytest.mark.skipif(native_library() is None, reason="the native kernels cannot be built here")

PLAIN = ["llama", "llama_tied", "qwen2", "qwen2_window", "qwen3", "mistral", "mistral_window"]
PLAIN += ["llama_linear", "llama_yarn", "llama_llama3"]
OTHERS = ["gemma2", "gemma3", "phi3", "gpt2", "opt", "mixtral", "qwen3_moe", "gpt_oss", "granite"]


def random_ids(count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(0, 512, count).tolist()


@pytest.mark.parametrize("name", PLAIN)
def test_decoders_like_llama_run_in_one_call(name, tiny_model):
    assert tiny_model(name).is_plain


@pytest.mark.parametrize("name", OTHERS)
def test_others_do_not_but_their_linears_are_packed(name, tiny_model):
    """Granite has the parts of a Llama; its factors show in the numbers."""
    loaded = tiny_model(name)
    assert not loaded.is_plain
    assert any(isinstance(module, PackedLinear) for module in loaded.model.modules())


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("name", [*PLAIN[:7], "phi3", "gpt2"])
def test_the_load_check_passes(name, numerics, tiny_model):
    loaded = tiny_model(name, numerics)
    check_model(loaded, select_ops(numerics, loaded.device), 400)


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral_window"])
def test_rows_have_the_same_bits_in_any_company_in_both_numerics(name, tiny_model, sequences):
    ids = [random_ids(40, seed) for seed in range(3)]
    results = []
    for numerics in ("fast", "exact"):
        whole = sequences(tiny_model(name, numerics)).run([(1, 0, ids[1])]).logits
        paged = sequences(tiny_model(name, numerics))
        parts = [
            paged.run([(0, 0, ids[0][:9]), (1, 0, ids[1][:13]), (2, 0, ids[2][:30])]).logits[9:22],
            paged.run([(1, 13, ids[1][13:14])]).logits,
            paged.run([(2, 30, ids[2][30:31]), (1, 14, ids[1][14:])]).logits[1:],
        ]
        assert torch.equal(torch.cat(parts), whole)
        results.append(whole)
    assert torch.equal(*results)


def test_hidden_states_are_those_of_transformers(tiny_path, tiny_model, sequences):
    ids = random_ids(11)
    output = sequences(tiny_model("llama"), taps=(0, 1, "final")).run([(0, 0, ids)])
    model = AutoModelForCausalLM.from_pretrained(tiny_path("llama"))
    with torch.inference_mode():
        wanted = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    for tap, state in zip((0, 1, "final"), wanted, strict=True):
        torch.testing.assert_close(output.features[tap], state[0], rtol=1e-4, atol=1e-4)


def test_taps_of_one_pass_are_not_those_of_the_next(tiny_model, sequences):
    paged = sequences(tiny_model("llama"), taps=(1,))
    first = paged.run([(0, 0, random_ids(5))]).features[1]
    kept = first.clone()
    paged.run([(1, 0, random_ids(5, seed=2))])
    assert torch.equal(first, kept)


# -- 8 and 4 bits ----------------------------------------------------------------------------------------------------


def rounded_weight(weight, bits):
    if bits == 4:
        return rounded_to_nibbles(weight).weights(weight.shape[1])
    values, scale = rounded(weight)
    return values * scale[:, None]


@pytest.fixture
def with_rounded_weights(tiny_path, tmp_path):
    """``(name, quantization) -> directory`` of the same model, whose linear layers have the weights that it gives."""

    def save(name, quantization):
        model = AutoModelForCausalLM.from_pretrained(tiny_path(name))
        head = model.get_output_embeddings()
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, torch.nn.Linear):
                    bits = 4 if quantization == "int4" and module is not head else 8
                    module.weight.copy_(rounded_weight(module.weight, bits))
        model.save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


QUANTIZATIONS = ["int8", "int4"]


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("name", ["llama", "qwen2", "phi3"])
def test_rounding_gives_what_the_rounded_weights_give(
    quantization, name, tiny_path, with_rounded_weights, sequences, own_logits
):
    ids = random_ids(25)
    loaded = load_model(str(tiny_path(name)), quantization=quantization)
    got = sequences(loaded).run([(0, 0, ids)]).logits
    torch.testing.assert_close(got, own_logits(with_rounded_weights(name, quantization), ids), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(got, own_logits(tiny_path(name), ids), rtol=1e-3, atol=1e-3)


def test_4_bits_choose_the_tokens_of_the_rounded_weights(tiny_path, with_rounded_weights):
    """Through the whole engine. Logits of the tiny model lie further apart than rounding in float32 reaches."""
    prompts = [{"prompt_token_ids": random_ids(20, seed)} for seed in range(3)]
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    answers = []
    for path, quantization in ((tiny_path("llama"), "int4"), (with_rounded_weights("llama", "int4"), None)):
        llm = LLM(str(path), quantization=quantization, num_gpu_blocks_override=64, max_model_len=64)
        answers.append([output.outputs[0].token_ids for output in llm.generate(prompts, params)])
    assert answers[0] == answers[1]


def test_layers_of_sizes_that_no_group_divides_run_in_one_call(save_checkpoint, tiny_sizes, tmp_path, sequences):
    config = AutoConfig.for_model("llama", **tiny_sizes | {"intermediate_size": 100})
    loaded = load_model(str(save_checkpoint(config, tmp_path / "odd")), quantization="int4")
    assert loaded.is_plain
    ids = random_ids(25)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "odd")
    with torch.no_grad():
        for layer in model.model.layers:
            for linear in (m for m in layer.modules() if isinstance(m, torch.nn.Linear)):
                linear.weight.copy_(rounded_weight(linear.weight, 4))
        model.lm_head.weight.copy_(rounded_weight(model.lm_head.weight, 8))
        wanted = model(torch.tensor([ids]), use_cache=False).logits[0]
    torch.testing.assert_close(sequences(loaded).run([(0, 0, ids)]).logits, wanted, rtol=1e-3, atol=1e-3)


def test_each_quantization_makes_other_weights(tiny_path, tiny_model):
    loaded = [load_model(str(tiny_path("llama")), quantization=quantization) for quantization in QUANTIZATIONS]
    for model in loaded:
        assert model.is_plain
        check_model(model, select_ops("fast", model.device), 400)
    assert len({model.weights_fingerprint for model in (*loaded, tiny_model("llama"))}) == 3


def test_what_decides_4_bit_weights_is_in_the_fingerprint(tiny_path, monkeypatch):
    before = load_model(str(tiny_path("llama")), quantization="int4").weights_fingerprint
    named = packing.QUANTIZATIONS["int4"]
    assert all(
        part in named for part in (f"groups of {GROUP}", "bfloat16", f"{REFINEMENTS} least squares", "LM head int8")
    )
    monkeypatch.setitem(packing.QUANTIZATIONS, "int4", named.replace("32", "64"))
    assert load_model(str(tiny_path("llama")), quantization="int4").weights_fingerprint != before


@pytest.mark.parametrize("tied", ["llama", "llama_tied"])
def test_the_head_of_4_bit_layers_has_8(tied, tiny_path):
    model = load_model(str(tiny_path(tied)), quantization="int4").model
    assert model.get_output_embeddings().weight_bits == 8
    assert {m.weight_bits for m in model.model.modules() if isinstance(m, PackedLinear)} == {4}
    assert model.get_input_embeddings().weight.dtype == torch.float32


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_rounded_weights_keep_exact_numerics(quantization, name, tiny_path, sequences):
    loaded = load_model(str(tiny_path(name)), quantization=quantization, numerics="exact")
    ids = random_ids(30)
    whole = sequences(loaded).run([(0, 0, ids)]).logits
    paged = sequences(loaded)
    rows = [paged.run([(0, row, ids[row : row + 1])]).logits for row in range(len(ids))]
    assert torch.equal(torch.cat(rows), whole)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {}])
def test_rounding_is_refused_where_no_kernel_serves_it(quantization, options, tiny_path, monkeypatch):
    if not options:
        monkeypatch.setattr(loading, "native_library", lambda: None)
    with pytest.raises(
        UnsupportedModelError, match=rf'cannot be run with quantization="{quantization}" in torch.* on cpu: the na'
    ):
        load_model(str(tiny_path("llama")), quantization=quantization, **options)


@pytest.mark.parametrize(("name", "remedy"), [("int5", r'; did you mean "int[48]"\?'), ("awq", "; known: int4, int8")])
def test_an_unknown_quantization_is_refused_with_those_there_are(name, remedy, tiny_path):
    with pytest.raises(UnsupportedModelError, match=rf'E302: quantization "{name}" is unknown{remedy}$'):
        load_model(str(tiny_path("llama")), quantization=name)


def test_a_row_of_zeros_has_a_scale():
    values, scale = rounded(torch.tensor([[0.0, 0.0], [1.0, -2.0]]))
    assert values.tolist() == [[0, 0], [64, -127]] and scale.isfinite().all() and (scale > 0).all()


# -- what looks like a Llama -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model_type",
    [
        "olmo",
        "olmo2",
        "olmo3",
        "ministral3",
        "cohere",
        "glm",
        "starcoder2",
        "smollm3",
        "seed_oss",
    ],
)
def test_relatives_give_their_own_logits_at_every_position(
    model_type, save_checkpoint, tiny_sizes, tmp_path, sequences
):
    """Norms without weights, queries scaled by position, partial rotary, other norms, layers without positions."""
    config = AutoConfig.for_model(model_type, **tiny_sizes | {"max_position_embeddings": 120, "pad_token_id": 0})
    if model_type == "ministral3":
        config.rope_parameters = {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "llama_4_scaling_beta": 0.5,
            "original_max_position_embeddings": 40,
        }
    loaded = load_model(str(save_checkpoint(config, tmp_path)))
    ids = random_ids(100)
    got = sequences(loaded).run([(0, 0, ids)]).logits
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.inference_mode():
        wanted = model(torch.tensor([ids]), use_cache=False).logits[0]
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=2e-3)


def test_a_linear_whose_weight_its_owner_reads_is_left_alone():
    class Router(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.other = torch.nn.Linear(4, 48), torch.nn.Linear(4, 48)

        def forward(self, x):
            return self.other(self.gate(x.to(self.gate.weight.dtype))[..., :4])

    router = Router()
    wanted = router(torch.ones(1, 4))
    pack_linears(router, native_library())
    assert type(router.gate) is torch.nn.Linear and isinstance(router.other, PackedLinear)
    torch.testing.assert_close(router(torch.ones(1, 4)), wanted)


def test_a_window_that_the_models_code_ignores_is_ignored(save_checkpoint, tiny_sizes, tmp_path, sequences, own_logits):
    config = AutoConfig.for_model("llama", **tiny_sizes)
    config.sliding_window = 9
    loaded = load_model(str(save_checkpoint(config, tmp_path)))
    ids = random_ids(40)
    got = sequences(loaded).run([(0, 0, ids)]).logits
    torch.testing.assert_close(got, own_logits(tmp_path, ids), rtol=1e-3, atol=1e-3)
