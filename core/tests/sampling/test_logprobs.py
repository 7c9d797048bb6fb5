from __future__ import annotations

import json

import pytest
import torch

from paceline.sampling.logprobs import LOGPROB_FLOOR, token_logprobs


@pytest.mark.parametrize("vocab_size", [1, 5, 33, 1000, 49_152])
@pytest.mark.parametrize("scale", [0.1, 3.0, 60.0])
def test_values_equal_log_softmax(vocab_size, scale):
    logits = torch.randn(7, vocab_size) * scale + 11
    tokens = torch.randint(vocab_size, (7,))
    expected = logits.double().log_softmax(-1)
    top_n = min(5, vocab_size)
    logprob, top_ids, top_logprobs = token_logprobs(logits, tokens, top_n)
    assert logprob.dtype == top_logprobs.dtype == torch.float32
    assert torch.allclose(logprob.double(), expected.gather(1, tokens[:, None])[:, 0], rtol=1e-6, atol=1e-6)
    assert torch.allclose(top_logprobs.double(), expected.topk(top_n).values, rtol=1e-6, atol=1e-6)
    assert torch.equal(top_ids, logits.topk(top_n).indices)


def test_not_all_are_0():
    logprob, _, top = token_logprobs(torch.randn(4, 50), torch.arange(4), 5)
    assert (logprob < 0).all() and (top < 0).all()
    assert (top[:, :-1] >= top[:, 1:]).all()


def test_the_lowest_ids_come_first_among_equals():
    logits = torch.tensor([[1.0, -0.0, 2.0, 0.0, 1.0, 2.0, 0.0, -1.0, -1.0]])
    _, ids, values = token_logprobs(logits, torch.tensor([2]), 9)
    assert ids.tolist() == [[2, 5, 0, 4, 1, 3, 6, 7, 8]]
    for top_n in range(9):
        _, fewer, fewer_values = token_logprobs(logits, torch.tensor([2]), top_n)
        assert torch.equal(fewer, ids[:, :top_n]) and torch.equal(fewer_values, values[:, :top_n])


def test_values_are_finite_and_json_whatever_the_logits():
    logits = torch.tensor([[0.0, -torch.inf, -1e30], [torch.nan, 0.0, 1.0], [-torch.inf] * 3, [torch.inf, 0.0, 1.0]])
    logprob, _, top = token_logprobs(logits, torch.ones(4, dtype=torch.int64), 3)
    assert logprob.tolist() == [LOGPROB_FLOOR] * 4
    assert top[0].tolist() == [0.0, LOGPROB_FLOOR, LOGPROB_FLOOR]
    json.dumps([logprob.tolist(), top.tolist()], allow_nan=False)


@pytest.mark.parametrize("vocab_size", [1, 3, 31, 257, 1001, 49_152])
def test_a_row_does_not_depend_on_the_others(vocab_size, num_threads, same_bits):
    logits = torch.randn(9, vocab_size) * 5
    tokens = torch.randint(vocab_size, (9,))
    top_n = min(3, vocab_size)
    whole = token_logprobs(logits, tokens, top_n)
    for picked in ([0], [8], [3, 1], [2, 4, 5], [8, 7, 6, 5, 4]):
        part = token_logprobs(logits[picked], tokens[picked], top_n)
        assert same_bits(part[0], whole[0][picked])
        assert torch.equal(part[1], whole[1][picked])
        assert same_bits(part[2], whole[2][picked])
