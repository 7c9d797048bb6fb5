"""Exact numerics: a row's bits do not depend on what it shares a pass with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.pytorch_utils import Conv1D

from paceline.model.experts import ExactExperts
from paceline.model.loading import load_model
from paceline.ops.exact import ExactLinear, NumericsError

pytestmark = pytest.mark.usefixtures("torch_kernels")

NAMES = ["llama", "llama_tied", "qwen2_window", "qwen3", "mistral_window"]
NUM_TOKENS = 90


@pytest.fixture
def three_threads():
    """More threads than a tiny matrix needs: work is then cut at places that follow the number of rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def random_ids(count, seed):
    return np.random.default_rng(seed).integers(0, 512, count).tolist()


def by_chunks(sequences, loaded, ids, counts):
    paged, start, logits = sequences(loaded), 0, []
    for count in counts:
        logits.append(paged.run([(0, start, ids[start : start + count])]).logits)
        start += count
    return torch.cat(logits)


def beside_mates(sequences, loaded, ids):
    """In chunks of 13 between a mate that decodes and one that is prefilled."""
    paged, logits = sequences(loaded), []
    one, two = random_ids(NUM_TOKENS, 7), random_ids(NUM_TOKENS, 8)
    paged.run([(2, 0, two[:60])])
    for step, start in enumerate(range(0, len(ids), 13)):
        chunk, mate = ids[start : start + 13], one[9 * step : 9 * step + 9]
        output = paged.run([(2, 60 + step, [two[60 + step]]), (0, start, chunk), (1, 9 * step, mate)])
        logits.append(output.logits[1 : 1 + len(chunk)])
    return torch.cat(logits)


def assert_rows_keep_their_bits(loaded, sequences):
    ids = random_ids(NUM_TOKENS, 3)
    alone = by_chunks(sequences, loaded, ids, [NUM_TOKENS])
    assert torch.equal(by_chunks(sequences, loaded, ids, [1] * NUM_TOKENS), alone)
    assert torch.equal(by_chunks(sequences, loaded, ids, [33, 1, 2, 17, 30, 7]), alone)
    assert torch.equal(beside_mates(sequences, loaded, ids), alone)


@pytest.mark.parametrize("name", NAMES)
def test_rows_keep_their_bits(name, tiny_model, sequences):
    assert_rows_keep_their_bits(tiny_model(name, "exact"), sequences)


def test_rows_keep_their_bits_in_every_architecture(breadth, tiny_model, sequences):
    assert_rows_keep_their_bits(tiny_model(breadth, "exact"), sequences)


@pytest.mark.parametrize("name", ["gpt_oss", "qwen2_moe", "gemma2"])
def test_rows_keep_their_bits_with_threads(name, tiny_path, sequences, three_threads):
    assert_rows_keep_their_bits(load_model(str(tiny_path(name)), numerics="exact"), sequences)


class Mixer(nn.Module):
    """A product of matrices that is no linear layer."""

    def forward(self, x):
        return x @ torch.eye(x.shape[-1])


class TwoTensors(nn.Module):
    def forward(self, x):
        return torch.pow(x.abs(), torch.full_like(x, 1.5))


@pytest.mark.parametrize(("module", "words"), [(Mixer(), '"matmul" outside of'), (TwoTensors(), '"pow" on two')])
def test_what_has_no_exact_body_is_refused(module, words, tiny_path, sequences):
    loaded = load_model(str(tiny_path("llama")), numerics="exact")
    loaded.model.model.layers[0].mlp.act_fn = module
    with pytest.raises(NumericsError, match=rf'E320: exact numerics: the model calls {words}.*numerics="fast"'):
        sequences(loaded).run([(0, 0, [1, 2, 3])])


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
def test_rows_keep_their_bits_with_awkward_widths_and_threads(
    activation, tiny_sizes, save_checkpoint, tmp_path, sequences, three_threads
):
    sizes = tiny_sizes | {"hidden_size": 56, "intermediate_size": 1001, "vocab_size": 515, "hidden_act": activation}
    path = save_checkpoint(LlamaConfig(**sizes), tmp_path)
    assert_rows_keep_their_bits(load_model(str(path), numerics="exact"), sequences)


def test_fast_numerics_do_not_keep_them(tiny_model, sequences):
    """The control: if this fails, the tests above prove nothing."""
    with pytest.raises(AssertionError):
        assert_rows_keep_their_bits(tiny_model("llama"), sequences)


@pytest.mark.parametrize(
    ("name", "num_linears", "num_experts"), [("llama_tied", 2 * 7 + 1, 0), ("gpt2", 2 * 4 + 1, 0), ("mixtral", 9, 2)]
)
def test_every_matrix_is_replaced(name, num_linears, num_experts, tiny_model):
    modules = list(tiny_model(name, "exact").model.modules())
    assert not [module for module in modules if isinstance(module, nn.Linear | Conv1D)]
    assert sum(isinstance(module, ExactLinear) for module in modules) == num_linears
    assert sum(isinstance(module, ExactExperts) for module in modules) == num_experts


def test_no_rows_need_no_logits(tiny_model, sequences):
    paged = sequences(tiny_model("llama", "exact"))
    forward = paged.runner.forward
    paged.runner.forward = lambda tokens, positions, batch, _: forward(
        tokens, positions, batch, torch.empty(0, dtype=torch.int64)
    )
    assert paged.run([(0, 0, [1, 2, 3])]).logits.shape == (0, 512)
