"""Quantised checkpoints: served through transformers where that works here, refused with the reason where not."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from paceline.model.errors import CheckpointError, MissingPackageError, UnsupportedModelError
from paceline.model.fingerprint import weights_fingerprint
from paceline.model.load_check import check_model
from paceline.model.loading import load_model
from paceline.ops.exact import NumericsError
from paceline.ops.select import select_ops

BLOCK = 32
FP8 = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"}
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens on a CPU")


def describe(folder, settings):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": settings}))


@pytest.fixture
def plain(tiny_sizes, save_checkpoint, tmp_path):
    return save_checkpoint(LlamaConfig(**tiny_sizes | {"intermediate_size": 128}), tmp_path)


@pytest.fixture
def fp8(plain):
    """The projections in 8 bits with a scale for each square of 32."""
    file = plain / "model.safetensors"
    weights = load_file(file)
    for name in [name for name in weights if "proj" in name]:
        rows, columns = weights[name].shape
        squares = weights[name].view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        scales = squares.abs().amax((1, 3)) / 448
        weights[name] = (squares / scales[:, None, :, None]).view(rows, columns).to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = scales
    save_file(weights, file, metadata={"format": "pt"})
    describe(plain, FP8)
    return plain


@pytest.mark.usefixtures("torch_kernels")  # which keep the weights as they are
@no_gpu
def test_fp8_is_widened_on_a_cpu(fp8):
    stored = load_file(fp8 / "model.safetensors")
    loaded = load_model(str(fp8))
    name = "model.layers.1.mlp.down_proj.weight"
    scales = stored[f"{name}_scale_inv"].repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    torch.testing.assert_close(loaded.model.get_parameter(name).detach(), stored[name].float() * scales)
    check_model(loaded, select_ops("fast", loaded.device), 300)


@pytest.mark.parametrize("settings", [FP8, {"quant_method": "gptq", "bits": 4}], ids=lambda one: one["quant_method"])
def test_exact_numerics_refuse_quantised_weights(settings, plain):
    describe(plain, settings)
    with pytest.raises(NumericsError, match=rf'E320: ".*quantised with "{settings["quant_method"]}".*numerics="fast"'):
        load_model(str(plain), numerics="exact")


@pytest.mark.parametrize(
    ("settings", "package"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "optimum"),
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, "gptqmodel"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}}, "torchao"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_missing_package_is_named(settings, package, plain):
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    describe(plain, settings)
    with pytest.raises(MissingPackageError, match=rf'E303.*quantised with "{settings["quant_method"]}".*{package}'):
        load_model(str(plain))


@pytest.mark.parametrize("error", [RuntimeError("No GPU found."), ValueError("No GPU found.\nMore")])
def test_a_device_that_cannot_run_it_is_named(error, plain, monkeypatch):
    def refuse(**_):
        raise error

    describe(plain, FP8)
    monkeypatch.setattr("paceline.model.loading.AutoModelForCausalLM.from_pretrained", refuse)
    words = r'E302: ".*" is quantised with "fp8", which cannot be loaded on device "cpu": No GPU found\.; use another'
    with pytest.raises(UnsupportedModelError, match=words):
        load_model(str(plain), device="cpu")


def test_faults_of_plain_checkpoints_are_not_blamed_on_it(plain):
    (plain / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CheckpointError, match="damaged safetensors file"):
        load_model(str(plain))


def test_an_unknown_method_is_refused(plain):
    """transformers would skip it and take the quantised numbers for weights."""
    describe(plain, {"quant_method": "brandnew"})
    with pytest.raises(UnsupportedModelError, match=r'E302.*quantised with "brandnew".*it knows .*awq.*fp8.*gptq'):
        load_model(str(plain))


@no_gpu
def test_tensors_that_nothing_reads_are_refused(fp8):
    describe(fp8, {"quant_method": "mxfp4"})
    with pytest.raises(CheckpointError, match=r'E305.*"mxfp4", and 14 of its tensors were not read.*weight_scale_inv'):
        load_model(str(fp8))


class Packed(torch.Tensor):
    """As torchao's tensors: made of parts, and itself without memory."""

    @staticmethod
    def __new__(cls, data, scale, settings):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)

    def __init__(self, data, scale, settings):
        self.data_part, self.scale, self.settings = data, scale, settings

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)

    def __tensor_flatten__(self):
        return ["data_part", "scale"], self.settings


def test_the_fingerprint_of_packed_tensors_is_of_their_content():
    def fingerprint(data=1, scale=2.0, settings="rows"):
        module = torch.nn.Module()
        module.state_dict = lambda: {
            "w": Packed(torch.full((2, 3), data, dtype=torch.int8), torch.full((2, 1), scale), settings)
        }
        return weights_fingerprint(module)

    assert fingerprint() == fingerprint()
    assert len({fingerprint(), fingerprint(data=2), fingerprint(scale=3.0), fingerprint(settings="columns")}) == 4
