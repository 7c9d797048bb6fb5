"""Loading: what is found, what is described, and what is refused with which words."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, MambaConfig, PreTrainedTokenizerFast, T5Config
from transformers.utils import logging as transformers_logging

from paceline.model import loading
from paceline.model.device import resolve_device, resolve_dtype
from paceline.model.errors import (
    CheckpointError,
    DeviceError,
    MissingPackageError,
    ModelNotFoundError,
    RemoteCodeError,
    UnsupportedModelError,
)
from paceline.model.loading import load_model
from paceline.ops.exact import NumericsError


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def checkpoint(tiny_path, tmp_path):
    """A private copy of the tiny Llama checkpoint."""
    return shutil.copytree(tiny_path("llama"), tmp_path / "model")


def save_tokenizer(folder, words=("a", "b", "<eos>")):
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>").save_pretrained(folder)


def test_a_directory_without_tokenizer(tiny_path):
    loaded = load_model(str(tiny_path("llama")))
    assert not loaded.model.training
    assert (loaded.dtype, loaded.device.type, loaded.numerics) == (torch.float32, "cpu", "fast")
    assert (loaded.tokenizer, loaded.tokenizer_fingerprint, loaded.eos_token_ids) == (None, "", ())
    assert (loaded.vocab_size, loaded.num_token_ids) == (512, 512)
    assert loaded.name == str(tiny_path("llama"))


def test_the_tokenizer_bounds_the_ids_and_gives_the_end_token(checkpoint):
    save_tokenizer(checkpoint)
    loaded = load_model(str(checkpoint))
    assert loaded.num_token_ids == 3
    assert loaded.eos_token_ids == (2,)


def test_the_tokenizer_may_come_from_elsewhere(tiny_path, checkpoint):
    save_tokenizer(checkpoint)
    assert load_model(str(tiny_path("llama")), tokenizer=str(checkpoint)).num_token_ids == 3


@pytest.mark.parametrize(("given", "expected"), [(7, (7,)), ([9, 4, 9], (4, 9))])
def test_end_tokens_come_from_the_generation_config_first(given, expected, checkpoint):
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": given}))
    edit_config(checkpoint, eos_token_id=3)
    assert load_model(str(checkpoint)).eos_token_ids == expected


def test_end_tokens_fall_back_to_the_configuration(checkpoint):
    (checkpoint / "generation_config.json").write_text("{}")
    edit_config(checkpoint, eos_token_id=3)
    assert load_model(str(checkpoint)).eos_token_ids == (3,)


def test_dtype_by_name(tiny_path):
    loaded = load_model(str(tiny_path("llama")), dtype="bfloat16")
    assert loaded.dtype == loaded.model.lm_head.weight.dtype == torch.bfloat16


def test_weights_fingerprint_is_of_content(tiny_path, checkpoint, save_checkpoint, tmp_path):
    original = load_model(str(tiny_path("llama")))
    assert load_model(str(checkpoint)).weights_fingerprint == original.weights_fingerprint
    assert load_model(str(checkpoint), numerics="exact").weights_fingerprint == original.weights_fingerprint
    other = save_checkpoint(AutoConfig.from_pretrained(checkpoint), tmp_path / "other", seed=1)
    assert load_model(str(other)).weights_fingerprint != original.weights_fingerprint
    assert load_model(str(checkpoint), dtype="bfloat16").weights_fingerprint != original.weights_fingerprint


def test_weights_fingerprint_sees_one_changed_number(checkpoint):
    before = load_model(str(checkpoint)).weights_fingerprint
    file = checkpoint / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.1.mlp.down_proj.weight"][3, 5] += 1e-3
    save_file(weights, file, metadata={"format": "pt"})
    assert load_model(str(checkpoint)).weights_fingerprint != before


def test_tokenizer_fingerprint_ignores_templates_and_use_but_not_the_vocabulary(checkpoint):
    save_tokenizer(checkpoint)
    first = load_model(str(checkpoint))
    first.tokenizer("a b", truncation=True, max_length=1)
    assert loading.tokenizer_fingerprint(first.tokenizer) == first.tokenizer_fingerprint
    (checkpoint / "chat_template.jinja").write_text("{{ messages }}")
    assert load_model(str(checkpoint)).tokenizer_fingerprint == first.tokenizer_fingerprint
    save_tokenizer(checkpoint, words=("b", "a", "<eos>"))
    assert load_model(str(checkpoint)).tokenizer_fingerprint != first.tokenizer_fingerprint


def test_transformers_progress_bars_are_restored(tiny_path, capfd):
    transformers_logging.enable_progress_bar()
    load_model(str(tiny_path("llama")))
    assert transformers_logging.is_progress_bar_enabled()
    assert "Loading weights" not in capfd.readouterr().err


def test_nothing_under_the_name(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match=r'E301: there is no directory "org/absent".*revision "v9".*spelling'):
        load_model("org/absent", revision="v9")


def test_no_such_gguf_file(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r'E301: there is no file ".*absent\.gguf"'):
        load_model(str(tmp_path / "absent.gguf"))


def test_a_directory_that_is_no_model(tmp_path):
    with pytest.raises(CheckpointError, match=r"E305.*holds no config\.json"):
        load_model(str(tmp_path))


def test_a_directory_without_safetensors(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"E305.*holds no \*\.safetensors; convert"):
        load_model(str(checkpoint))


def test_a_damaged_file(checkpoint):
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"E305.*damaged safetensors file.*fetch it again"):
        load_model(str(checkpoint))


def test_missing_weights_are_not_made_up(checkpoint):
    file = checkpoint / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"E305.*lacks 1 of the tensors.*layers\.1\.mlp\.down_proj\.weight"):
        load_model(str(checkpoint))


def test_unknown_architecture(checkpoint):
    edit_config(checkpoint, model_type="brandnew")
    with pytest.raises(UnsupportedModelError, match=r"E302.*cannot be loaded by transformers.*brandnew"):
        load_model(str(checkpoint))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (T5Config(), "is an encoder-decoder model"),
        (MambaConfig(), 'layers of type "linear_attention"; served are: full_attention'),
        (AutoConfig.for_model("rwkv"), "keeps recurrent state, which is not a paged KV cache"),
        (AutoConfig.for_model("gpt_neo"), "GPTNeoForCausalLM, which does not send its attention"),
        (AutoConfig.for_model("bart"), "is an encoder-decoder model"),
        (AutoConfig.for_model("jamba"), "has layers of type|keeps recurrent state"),
        (AutoConfig.for_model("recurrent_gemma"), "has layers of type|keeps recurrent state"),
        (AutoConfig.for_model("falcon_h1"), "has layers of type|keeps recurrent state"),
        (AutoConfig.for_model("qwen3_next"), 'layers of type "linear_attention"'),
        (AutoConfig.for_model("llama4_text"), 'layers of type "chunked_attention"'),
        (AutoConfig.for_model("bloom"), "BloomForCausalLM, which does not send its attention"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_refused_before_weights_are_read(config, words, tmp_path):
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UnsupportedModelError, match=f"E302.*{words}"):
        load_model(str(tmp_path))


@pytest.mark.usefixtures("torch_kernels")  # which keep the weights as they are
def test_sharded_and_bfloat16_checkpoints(tiny_path, tmp_path):
    whole = load_model(str(tiny_path("llama")), dtype="bfloat16")
    whole.model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    sharded = load_model(str(tmp_path), dtype="bfloat16")
    assert sharded.weights_fingerprint == whole.weights_fingerprint
    widened = load_model(str(tmp_path))
    assert widened.dtype == torch.float32
    assert torch.equal(widened.model.lm_head.weight, whole.model.lm_head.weight.float())


def test_a_missing_shard(tiny_path, tmp_path):
    load_model(str(tiny_path("llama"))).model.save_pretrained(tmp_path, max_shard_size="100KB")
    sorted(tmp_path.glob("*.safetensors"))[1].unlink()
    with pytest.raises(CheckpointError, match=r"E305.*(cannot be read|lacks)"):
        load_model(str(tmp_path))


def test_own_code_needs_leave(checkpoint):
    edit_config(checkpoint, model_type="own_type", auto_map={"AutoConfig": "own.OwnConfig"})
    (checkpoint / "own.py").write_text("raise SystemExit('ran')")
    with pytest.raises(RemoteCodeError, match=r"E307.*brings its own code.*trust_remote_code=True"):
        load_model(str(checkpoint))


def test_gguf_needs_its_packages(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r'E303.*needs gguf and accelerate; install with: pip install "pace'):
        load_model(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("device", ["tpu9", "mps", "cuda:9"])
def test_devices_that_are_not_there(device):
    with pytest.raises(DeviceError, match=rf'E306: device "{device}" is .*(use|not there)'):
        resolve_device(device)


def test_unknown_dtype():
    with pytest.raises(DeviceError, match=r'E306: dtype "int8" is unknown; use "auto" or one of float32'):
        resolve_dtype("int8", torch.device("cpu"))


def test_auto_dtype_is_the_checkpoints_on_cuda():
    assert resolve_dtype("auto", torch.device("cuda")) == "auto"


def test_exact_numerics_need_float32(tiny_path):
    with pytest.raises(NumericsError, match=r'"exact".*float32.*not for "bfloat16"'):
        load_model(str(tiny_path("llama")), dtype="bfloat16", numerics="exact")
