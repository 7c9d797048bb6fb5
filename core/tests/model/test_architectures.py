"""Each architecture against transformers' own eager forward."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.usefixtures("either_kernels")

NUM_TOKENS = 40


def random_ids(seed):
    return np.random.default_rng(seed).integers(0, 512, NUM_TOKENS).tolist()


@pytest.fixture(scope="module")
def own_forward(tiny_path):
    """``name -> [(logits, [entering layer 0, entering layer 1, after the last norm])]`` of three sequences."""
    made = {}

    def forward(name):
        if name not in made:
            model = AutoModelForCausalLM.from_pretrained(
                tiny_path(name), attn_implementation="eager", dtype=torch.float32
            ).eval()
            with torch.inference_mode():
                outputs = [
                    model(input_ids=torch.tensor([random_ids(seed)]), use_cache=False, output_hidden_states=True)
                    for seed in range(3)
                ]
            made[name] = [(output.logits[0], [state[0] for state in output.hidden_states]) for output in outputs]
        return made[name]

    return forward


def mixed_passes(paged):
    """Sequence 0 decodes with draft rows, 1 is prefilled in chunks, 2 decodes single tokens, all in the same passes."""
    ids = [random_ids(seed) for seed in range(3)]
    first = [paged.run([(0, 0, ids[0][:20])]), paged.run([(2, 0, ids[2][:30])])]
    got = [[(first[0], slice(0, 20))], [], [(first[1], slice(0, 30))]]
    for step, (start, stop) in enumerate(itertools.pairwise([0, 7, 8, 21, 35, 40])):
        decode, draft = 30 + step, 20 + 4 * step
        parts = [(2, decode, ids[2][decode : decode + 1]), (0, draft, ids[0][draft : draft + 4])]
        output = paged.run([*parts, (1, start, ids[1][start:stop])])
        for seq, rows in ((2, slice(0, 1)), (0, slice(1, 5)), (1, slice(5, None))):
            got[seq].append((output, rows))
    return got


@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_mixed_passes_give_the_models_own_logits_and_hidden_states(
    breadth, numerics, tiny_model, sequences, own_forward
):
    got = mixed_passes(sequences(tiny_model(breadth, numerics), taps=(0, 1, "final")))
    for passes, (own_logits, own_states) in zip(got, own_forward(breadth), strict=True):
        logits = torch.cat([output.logits[rows] for output, rows in passes])
        torch.testing.assert_close(logits, own_logits[: len(logits)], rtol=1e-4, atol=1e-4)
        for tap, own in zip((0, 1, "final"), own_states, strict=True):
            states = torch.cat([output.features[tap][rows] for output, rows in passes])
            torch.testing.assert_close(states, own[: len(states)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_the_ends_alone(breadth, numerics, tiny_model, sequences):
    """Absolute positions are taken out of an embedding; all else that makes the input of layer 0 is in it."""
    paged = sequences(tiny_model(breadth, numerics), taps=(0, "final"))
    ids = random_ids(5)
    output = paged.run([(0, 0, ids)])
    projected = paged.runner.logits(output.features["final"])
    torch.testing.assert_close(projected, output.logits, rtol=1e-5, atol=1e-5)
    embedded = paged.runner.embed(torch.tensor(ids))
    positions = paged.run([(1, 0, ids[:1] * NUM_TOKENS)]).features[0] - embedded[:1]
    torch.testing.assert_close(embedded + positions, output.features[0], rtol=1e-5, atol=1e-5)
    has_positions = tiny_model(breadth).config.model_type in ("gpt2", "opt")
    assert bool(positions.abs().max() > 1e-3) == has_positions
    if numerics == "exact":
        assert torch.equal(embedded[:1], paged.runner.embed(torch.tensor(ids[:1])))
        assert torch.equal(projected, output.logits)


@pytest.mark.parametrize("name", ["gpt2", "opt", "opt_projected"])
def test_absolute_positions_are_no_part_of_an_embedding(name, tiny_model, sequences):
    loaded, ids = tiny_model(name), torch.tensor(random_ids(1))
    own = loaded.model.get_input_embeddings()(ids)
    if name == "opt_projected":
        own = loaded.model.get_decoder().project_in(own)
    torch.testing.assert_close(sequences(loaded).runner.embed(ids), own.detach(), rtol=1e-5, atol=1e-5)


def test_the_ends_leave_nothing_behind(tiny_model, sequences):
    loaded = tiny_model("gpt2")
    runner = sequences(loaded).runner
    before = runner.embed(torch.tensor([3, 4])), runner.logits(torch.ones(2, 72))
    sequences(loaded).run([(0, 0, [1, 2, 3])])
    assert torch.equal(runner.embed(torch.tensor([3, 4])), before[0])
    assert torch.equal(runner.logits(torch.ones(2, 72)), before[1])
    assert "forward" not in vars(loaded.model.get_decoder())
    assert not any(module._forward_pre_hooks for module in loaded.model.modules())


@pytest.mark.parametrize(
    ("name", "what"),
    [("gemma2", "softcap"), ("gpt_oss", "sinks")],
)
def test_what_the_tests_above_would_miss(name, what, tiny_model, sequences, own_forward):
    """The control: without soft-cap or sinks the logits are others."""
    paged = sequences(tiny_model(name))
    attend = paged.runner._ops.attention
    object.__setattr__(paged.runner._ops, "attention", lambda *args, **kw: attend(*args, **{**kw, what: None}))
    logits = paged.run([(0, 0, random_ids(0))]).logits
    assert (logits - own_forward(name)[0][0]).abs().max() > 1e-2
