"""The head that comes with the package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

import paceline_eagle
from paceline.session import SessionContext
from paceline_eagle.training.measure import measure
from paceline_eagle.training.prompts import template_prompts

FOLDER = Path(paceline_eagle.__file__).parent / "data" / "demo"


def test_it_is_small() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size < 20e6
    tensors = load_file(FOLDER / "model.safetensors")
    assert {str(tensor.dtype) for name, tensor in tensors.items() if name.endswith("weight")} == {"torch.float16"}
    assert json.loads((FOLDER / "config.json").read_text())["eagle_aux_hidden_state_layer_ids"] == [2, 15, 29]


@pytest.mark.slow
def test_it_drafts_word_problems_for_the_model_it_was_made_for() -> None:
    head = {"model": "demo"}
    with SessionContext().open(
        "demo", proposer="eagle", proposer_options=head, num_speculative_tokens=3, max_model_len=512
    ) as session:
        assert session.facts.weights_fingerprint in (FOLDER / "README.md").read_text()
        prompts = [session.chat_prompt(text) for text in template_prompts(8, seed=5)]
        measured = measure(session, prompts, 64)
    print(measured)
    assert measured.acceptance_length > 1.6
