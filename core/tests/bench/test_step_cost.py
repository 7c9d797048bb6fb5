"""Which steps ``paceline bench step`` counts."""

from __future__ import annotations

import pytest

from paceline import LLM
from paceline.bench import step_cost
from paceline.bench.step_cost import StepPlan, decoding_steps


def test_steps_with_prompts_are_not_counted(tiny_chat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts longer than a step holds come in several; only steps in which all decode are told of."""
    monkeypatch.setattr(step_cost, "_MOST_ROWS", 32)
    plan = StepPlan([3], num_context_tokens=40, num_steps=5, num_rounds=1, temperature=0.0)
    with LLM(tiny_chat, max_num_seqs=3, max_num_batched_tokens=32, max_model_len=128) as llm:
        stats, step, all_emit = llm.engine.stats, llm.engine.step, []

        def watched():
            before_s, result = stats.forward_time_s, step()
            if len(result.new_tokens) == 3:
                all_emit.append(stats.forward_time_s - before_s)
            return result

        monkeypatch.setattr(llm.engine, "step", watched)
        steps = decoding_steps(llm, plan, 3, seed=1)
        num_steps = stats.num_steps
    assert len(all_emit) < num_steps, "no step was without a token of all"
    assert [step.forward_s for step in steps] == pytest.approx(all_emit[1:6])
    assert all(0 < step.forward_s < step.seconds for step in steps)
