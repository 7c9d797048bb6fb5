"""Exact numerics: a row's bits do not depend on what it shares a pass with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from paceline.model.loading import load_model
from paceline.ops.exact import ExactElementwise, ExactLinear

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


def test_every_linear_and_activation_is_replaced(tiny_model):
    modules = list(tiny_model("llama_tied", "exact").model.modules())
    assert not [module for module in modules if isinstance(module, nn.Linear)]
    assert sum(isinstance(module, ExactLinear) for module in modules) == 2 * 7 + 1
    assert sum(isinstance(module, ExactElementwise) for module in modules) == 2


def test_no_rows_need_no_logits(tiny_model, sequences):
    paged = sequences(tiny_model("llama", "exact"))
    forward = paged.runner.forward
    paged.runner.forward = lambda tokens, positions, batch, _: forward(
        tokens, positions, batch, torch.empty(0, dtype=torch.int64)
    )
    assert paged.run([(0, 0, [1, 2, 3])]).logits.shape == (0, 512)
