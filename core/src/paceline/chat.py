"""``paceline chat``: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing

from paceline.engine.errors import RequestError
from paceline.engine.llm import LLM
from paceline.engine.outputs import RequestOutput
from paceline.sampling.params import SamplingParams

__all__ = ["Conversation", "run_chat"]

_HELP = "/stats what the last answer cost · /reset begin anew · /exit leave (or Ctrl-D) · Ctrl-C stops an answer"


class Conversation:
    """The messages so far; an answer that was interrupted stays as far as it came.

    Args:
        llm: The model.
        params: How to choose tokens.
        write: Takes text to show.
    """

    def __init__(self, llm: LLM, params: SamplingParams, write: Callable[[str], object]) -> None:
        self._llm = llm
        self._params = params
        self._write = write
        self._messages: list[dict[str, str]] = []
        self._last: RequestOutput | None = None

    def handle(self, line: str) -> bool:
        """Answer a message or do what a command says; whether the conversation goes on."""
        command = line.strip()
        if command == "/exit":
            return False
        if command == "/reset":
            self._messages.clear()
        elif command == "/stats":
            self._write(self._stats() + "\n")
        elif command.startswith("/"):
            self._write(_HELP + "\n")
        elif command:
            self._answer(line)
        return True

    def _answer(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            with closing(self._llm.chat(self._messages, self._params, stream=True)) as deltas:
                for delta in deltas:
                    pieces.append(delta.text)
                    self._write(delta.text)
                    self._last = delta.finished or self._last
        except KeyboardInterrupt:
            self._write(" [stopped]")
        except RequestError:
            self._messages.pop()
            raise
        self._write("\n")
        self._messages.append({"role": "assistant", "content": "".join(pieces)})

    def _stats(self) -> str:
        if self._last is None:
            return "no answer yet"
        metrics = self._last.metrics
        parts = [f"{metrics.num_generated_tokens} tokens", f"{metrics.num_cached_tokens} of the prompt from the cache"]
        if metrics.ttft_s is not None:
            parts.append(f"first after {metrics.ttft_s * 1000:.0f} ms")
        if metrics.tpot_s:
            parts.append(f"{1 / metrics.tpot_s:.1f} tokens/s")
        if metrics.mean_acceptance_length is not None:
            parts.append(f"acceptance length {metrics.mean_acceptance_length:.2f}")
        return " · ".join(parts)


def run_chat(llm: LLM, params: SamplingParams, read: Callable[[str], str] = input) -> None:
    """Read lines and answer them until the end of input or ``/exit``."""

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    conversation = Conversation(llm, params, write)
    write(_HELP + "\n")
    while True:
        try:
            line = read("> ")
        except EOFError:
            write("\n")
            return
        try:
            if not conversation.handle(line):
                return
        except RequestError as error:
            write(f"{error}\n")
