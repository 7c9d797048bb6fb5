from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.chat import Conversation
from paceline.engine.errors import RequestError
from paceline.engine.outputs import StreamDelta

GREEDY = SamplingParams(temperature=0.0, max_tokens=3)


def test_a_conversation_streams_and_tells_its_cost(run: Callable[..., Any], alphabet: str) -> None:
    result = run("chat", "-m", alphabet, "--max-tokens", "3", "--temperature", "0", input="hi\n/stats\n/exit\nno\n")
    assert result.exit_code == 0, result.output
    assert "bcd\n" in result.output
    assert "3 tokens" in result.output
    assert "tokens/s" in result.output
    assert "no" not in result.output.split("tokens/s")[1]


def test_the_end_of_input_ends_it(run: Callable[..., Any], alphabet: str) -> None:
    assert run("chat", "-m", alphabet, input="").exit_code == 0


def test_a_model_without_a_template_says_so(run: Callable[..., Any], mute: str) -> None:
    result = run("chat", "-m", mute, input="hi\n")
    assert "PACELINE-E110: the model has no chat template; give the prompt as plain text" in result.output


class FakeLLM:
    """Answers with two letters, after which the user may interrupt."""

    def __init__(self, interrupts: bool = False) -> None:
        self.interrupts = interrupts
        self.seen: list[list[dict[str, str]]] = []

    def chat(self, messages: list[dict[str, str]], params: SamplingParams, *, stream: bool) -> Iterator[StreamDelta]:
        self.seen.append([dict(message) for message in messages])
        yield StreamDelta(prompt_index=0, index=0, text="xy", token_ids=[1, 2])
        if self.interrupts:
            raise KeyboardInterrupt


def test_history_is_sent_and_reset_forgets_it() -> None:
    llm = FakeLLM()
    conversation = Conversation(llm, GREEDY, lambda text: None)
    for line in ("one", "two", "/reset", "three"):
        assert conversation.handle(line)
    one, two = {"role": "user", "content": "one"}, {"role": "user", "content": "two"}
    assert llm.seen == [
        [one],
        [one, {"role": "assistant", "content": "xy"}, two],
        [{"role": "user", "content": "three"}],
    ]


def test_an_interrupt_stops_the_answer_and_not_the_conversation() -> None:
    written: list[str] = []
    llm = FakeLLM(interrupts=True)
    conversation = Conversation(llm, GREEDY, written.append)
    assert conversation.handle("one")
    assert "".join(written) == "xy [stopped]\n"
    assert conversation.handle("two")
    assert llm.seen[1][1] == {"role": "assistant", "content": "xy"}


def test_unknown_commands_give_help() -> None:
    written: list[str] = []
    Conversation(FakeLLM(), GREEDY, written.append).handle("/what")
    assert "/stats" in "".join(written)


def test_llm_chat_takes_one_conversation_or_several(alphabet: str) -> None:
    with LLM(alphabet) as llm:
        one = [{"role": "user", "content": "x"}]
        assert [o.outputs[0].text for o in llm.chat(one, GREEDY, use_tqdm=False)] == ["bcd"]
        assert [o.outputs[0].text for o in llm.chat([one, one], GREEDY, use_tqdm=False)] == ["bcd", "bcd"]
        assert "".join(delta.text for delta in llm.chat(one, GREEDY, stream=True)) == "bcd"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "messages is empty"),
        ("hi", "no list"),
        ([[]], "conversation 0 is empty"),
        ([{"role": "user"}], "conversation 0: .* is no mapping with role and content"),
        ([["hi"]], "conversation 0: 'hi' is no mapping"),
    ],
)
def test_what_is_no_conversation_is_refused(alphabet: str, messages: Any, words: str) -> None:
    with LLM(alphabet) as llm, pytest.raises(RequestError, match=words):
        llm.chat(messages, GREEDY)


def test_what_the_template_raises_is_told(alphabet: str) -> None:
    with LLM(alphabet) as llm:
        llm.get_tokenizer().chat_template = "{{ raise_exception('roles must alternate') }}"
        with pytest.raises(RequestError, match="the chat template refuses the messages: roles must alternate"):
            llm.chat([{"role": "user", "content": "x"}], GREEDY)
