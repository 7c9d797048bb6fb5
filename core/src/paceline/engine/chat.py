"""Chat messages as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from paceline.engine.errors import RequestError

__all__ = ["Message", "chat_prompt", "chat_token_ids", "conversations"]

Message = Mapping[str, Any]


def conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation or several, as several.

    Raises:
        RequestError: naming what is no message.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise RequestError("messages is empty or no list; give mappings with role and content, or lists of such")
    several: list[Any] = [messages] if isinstance(messages[0], Mapping) else list(messages)
    for number, conversation in enumerate(several):
        if not isinstance(conversation, Sequence) or not conversation:
            raise RequestError(f"conversation {number} is empty or no list; give mappings with role and content")
        for message in conversation:
            if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
                raise RequestError(f"conversation {number}: {message!r} is no mapping with role and content")
    return several


def chat_token_ids(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Tokens of a conversation through the checkpoint's chat template, ready for the assistant's turn.

    Raises:
        RequestError: if the model has no tokenizer or no chat template, or the template refuses the messages.
    """
    if tokenizer is None or tokenizer.chat_template is None:
        raise RequestError("the model has no chat template; give the prompt as plain text")
    try:
        encoded = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=True)
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        raise RequestError(f"the chat template refuses the messages: {error}") from error
    return [int(token) for token in encoded["input_ids"]]


def chat_prompt(tokenizer: Any, text: str) -> dict[str, Any]:
    """A prompt of one user message. The template brings its own first token, so it is tokenised here and not again."""
    return {"prompt": text, "prompt_token_ids": chat_token_ids(tokenizer, [{"role": "user", "content": text}])}
