"""The paged forward against transformers' own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from paceline.model.errors import UnsupportedModelError
from paceline.model.runner import ModelRunner
from paceline.ops.select import select_ops

pytestmark = pytest.mark.usefixtures("either_kernels")

NAMES = ["llama", "llama_tied", "qwen2", "qwen2_window", "qwen3", "mistral", "mistral_window"]


def random_ids(count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(0, 512, count).tolist()


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-4)
    assert torch.equal(got.argmax(-1), want.argmax(-1))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", NAMES)
def test_whole_prompt_gives_the_models_own_logits(name, attention, tiny_path, tiny_model, sequences, own_logits):
    ids = random_ids(41)
    output = sequences(tiny_model(name)).run([(0, 0, ids)])
    assert output.logits.dtype == torch.float32
    assert_close(output.logits, own_logits(tiny_path(name), ids, attention))


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("name", NAMES)
def test_chunks_decodes_and_draft_rows_in_mixed_passes(name, numerics, tiny_path, tiny_model, sequences, own_logits):
    """Sequence 0 decodes with draft rows, 1 is prefilled in chunks, 2 decodes single tokens, all in the same passes."""
    ids = [random_ids(40, seed) for seed in range(3)]
    paged = sequences(tiny_model(name, numerics))
    got = [paged.run([(0, 0, ids[0][:20])]).logits], [], [paged.run([(2, 0, ids[2][:30])]).logits]
    borders = [0, 7, 8, 21, 35, 40]
    for step, (start, stop) in enumerate(itertools.pairwise(borders)):
        draft_start = 20 + 4 * step
        parts = [(2, 30 + step, ids[2][30 + step : 31 + step]), (0, draft_start, ids[0][draft_start : draft_start + 4])]
        logits = paged.run([*parts, (1, start, ids[1][start:stop])]).logits
        for seq, rows in ((2, logits[:1]), (0, logits[1:5]), (1, logits[5:])):
            got[seq].append(rows)
    for seq, count in ((0, 40), (1, 40), (2, 35)):
        assert_close(torch.cat(got[seq]), own_logits(tiny_path(name), ids[seq][:count]))


def test_rejected_draft_rows_are_overwritten(tiny_path, tiny_model, sequences, own_logits):
    ids, wrong = random_ids(24), random_ids(5, seed=9)
    paged = sequences(tiny_model("llama"))
    paged.run([(0, 0, ids[:12])])
    paged.run([(0, 12, [ids[12], *wrong])])
    logits = paged.run([(0, 13, ids[13:])]).logits
    assert_close(logits, own_logits(tiny_path("llama"), ids)[13:])


def test_only_the_rows_asked_for_are_projected(tiny_model, sequences):
    paged = sequences(tiny_model("llama"))
    whole = paged.run([(0, 0, random_ids(9))]).logits
    seen = []
    forward = paged.runner.forward
    for rows in ([], [8], [3, 0, 7]):
        paged.runner.forward = lambda tokens, positions, batch, _, rows=rows: forward(
            tokens, positions, batch, torch.tensor(rows, dtype=torch.int64)
        )
        seen.append(paged.run([(0, 0, random_ids(9))]).logits)
    assert [tuple(logits.shape) for logits in seen] == [(0, 512), (1, 512), (3, 512)]
    torch.testing.assert_close(seen[2], whole[[3, 0, 7]])


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_taps_are_the_residual_stream(name, tiny_path, tiny_model, sequences):
    ids = random_ids(13)
    features = sequences(tiny_model(name), taps=(0, 1, "final")).run([(0, 0, ids)]).features
    own = AutoModelForCausalLM.from_pretrained(tiny_path(name), dtype=torch.float32).eval()
    with torch.inference_mode():
        states = own(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    assert set(features) == {0, 1, "final"}
    for tap, state in zip((0, 1, "final"), states, strict=True):
        torch.testing.assert_close(features[tap], state[0], rtol=1e-4, atol=1e-4)


def test_no_hooks_stay_behind(tiny_model, sequences):
    loaded = tiny_model("llama")
    sequences(loaded, taps=(0, "final")).run([(0, 0, random_ids(3))])
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in loaded.model.modules()]
    assert sum(hooks) == 0


def test_embed_and_logits_are_the_ends_of_the_forward(tiny_model, sequences):
    ids = random_ids(6)
    paged = sequences(tiny_model("llama_tied"), taps=(0, "final"))
    output = paged.run([(0, 0, ids)])
    assert torch.equal(paged.runner.embed(torch.tensor(ids)), output.features[0])
    torch.testing.assert_close(paged.runner.logits(output.features["final"]), output.logits)


def test_two_runners_share_a_model_and_keep_their_caches_apart(tiny_model, sequences):
    loaded = tiny_model("llama")
    one, two = sequences(loaded, taps=(1,)), sequences(loaded)
    ids, other = random_ids(12), random_ids(12, seed=5)
    alone = sequences(loaded).run([(0, 0, ids)]).logits
    one.run([(0, 0, ids[:6])])
    assert two.run([(0, 0, other[:6])]).features == {}
    torch.testing.assert_close(one.run([(0, 6, ids[6:])]).logits, alone[6:])


@pytest.mark.parametrize("tap", [2, -1, "last"])
def test_unknown_taps_are_refused(tap, tiny_model):
    loaded = tiny_model("llama")
    with pytest.raises(UnsupportedModelError, match=r'E302.*(layers 0 to 1|"last" are unknown).*"final"'):
        ModelRunner(loaded, [], select_ops("fast", loaded.device), taps=(tap,))
