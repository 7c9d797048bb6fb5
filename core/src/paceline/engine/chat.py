"""Chat messages as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.engine.errors import RequestError

__all__ = ["chat_prompt", "chat_token_ids"]


def chat_token_ids(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Tokens of a conversation through the checkpoint's chat template, ready for the assistant's turn.

    Raises:
        RequestError: if the model has no tokenizer or no chat template.
    """
    if tokenizer is None or tokenizer.chat_template is None:
        raise RequestError("the model has no chat template; give the prompt as plain text")
    encoded = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=True)
    return [int(token) for token in encoded["input_ids"]]


def chat_prompt(tokenizer: Any, text: str) -> dict[str, Any]:
    """A prompt of one user message. The template brings its own first token, so it is tokenised here and not again."""
    return {"prompt": text, "prompt_token_ids": chat_token_ids(tokenizer, [{"role": "user", "content": text}])}
