"""Programs written for another engine run here with only the import line and the model's name changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from paceline import LLM, SamplingParams
from paceline.host.errors import PluginOptionsError

CIRCLE = "abcd"


def after(prompt: str, num_tokens: int) -> str:
    """What the model says: on round the circle from the last letter."""
    start = CIRCLE.index(prompt[-1]) + 1
    return "".join(CIRCLE[(start + index) % 4] for index in range(num_tokens))


def line(prompt: str, text: str) -> str:
    return f"Prompt: {prompt!r}, Generated text: {text!r}"


def test_older_keywords(alphabet: Callable[[Sequence[str]], str], run_program: Callable[[str, str], list[str]]) -> None:
    printed = run_program("older_keywords.py", alphabet(CIRCLE))
    assert len(printed) == 3
    for shown, prompt in ((printed[0], "abcdabcdab"), (printed[2], "cdabcd")):
        assert shown == line(prompt, after(prompt, 24))
    assert printed[1].startswith("Prompt: 'The future of AI is', Generated text: '")


def test_speculative_config(
    alphabet: Callable[[Sequence[str]], str], run_program: Callable[[str, str], list[str]]
) -> None:
    printed = run_program("speculative_config.py", alphabet(CIRCLE))
    assert printed == [line(prompt, after(prompt, 20)) for prompt in ("abcdabcdab", "ab")]


@pytest.mark.parametrize(
    "options",
    [
        {"speculative_model": "[ngram]", "num_speculative_tokens": 4, "ngram_prompt_lookup_max": 3},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}},
    ],
    ids=["older keywords", "speculative_config"],
)
def test_the_keywords_do_switch_speculation_on(
    alphabet: Callable[[Sequence[str]], str], options: dict[str, object]
) -> None:
    with LLM(alphabet(CIRCLE), gpu_memory_utilization=0.92, **options) as llm:
        [output] = llm.generate("abcdabcdab", SamplingParams(temperature=0.0, top_p=0.95, max_tokens=24))
        assert any(named.startswith("proposer ngram ") for named in llm.plugins)
    assert output.outputs[0].text == after("abcdabcdab", 24)
    assert output.metrics.num_accepted_tokens == output.metrics.num_draft_tokens > 12
    assert len(output.metrics.accepted_per_position) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"speculative_model": "[ngram]", "num_speculative_tokens": 4, "ngram_prompt_lookup_max": -3},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": -3}},
    ],
    ids=["older keywords", "speculative_config"],
)
def test_the_keywords_reach_the_plugin(alphabet: Callable[[Sequence[str]], str], options: dict[str, object]) -> None:
    with pytest.raises(PluginOptionsError, match=r'PACELINE-E209: .*"ngram".*lookup_max" = -3'):
        LLM(alphabet(CIRCLE), **options)
