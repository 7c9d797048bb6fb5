"""The head that comes with the package, on the model that it is for."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import LLM, RequestOutput, SamplingParams

pytestmark = pytest.mark.slow

QUESTIONS = [
    "Anna has 12 apples and buys 5 bags of 8 apples. How many apples has she now?",
    "A train travels 60 kilometres in one hour. How far does it travel in 4 hours?",
    "Ben reads 15 pages on each weekday and 30 pages on each day of the weekend. How many pages is that in a week?",
]
SHAPES: dict[str, dict[str, Any]] = {"chain": {}, "tree": {"shape": "tree", "top_k": 4, "depth": 4}}


def answers(**settings: Any) -> list[RequestOutput]:
    params = [SamplingParams(max_tokens=32, temperature=temperature, seed=1) for temperature in (0.0, 0.0, 0.8)]
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    with LLM("demo", numerics="exact", max_model_len=256, **settings) as llm:
        return llm.chat(chats, params, use_tqdm=False)


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    return [output.outputs[0].token_ids for output in answers()]


@pytest.mark.parametrize(("shape", "num_drafts"), [("chain", 3), ("tree", 12)])
def test_it_saves_steps_and_changes_nothing(plain: list[list[int]], shape: str, num_drafts: int) -> None:
    options = {"model": "demo"} | SHAPES[shape]
    outputs = answers(proposer="eagle", proposer_options=options, num_speculative_tokens=num_drafts)
    assert [output.outputs[0].token_ids for output in outputs] == plain
    num_accepted = sum(output.metrics.num_accepted_tokens for output in outputs)
    num_steps = sum(output.metrics.num_drafts for output in outputs)
    assert 1 + num_accepted / num_steps > 1.5
