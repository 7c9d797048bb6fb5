"""What an OpenAI-compatible server streams for one prompt, event by event."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Completion", "error_message", "event_of", "shown"]

_MOST_SHOWN = 200


@dataclass(slots=True)
class Completion:
    """One answer, which grows with the events of its stream.

    Attributes:
        text: What was emitted.
        token_ids: Its tokens; empty where the server does not tell them.
        num_tokens: How many the server counted; ``None`` where it does not tell.
        finish_reason: ``"length"`` or ``"stop"``; ``None`` until the answer is whole.
        times_s: When each event with output came; of an empty answer, when its end did.
        num_first_tokens: Tokens of the first of them, as far as ``token_ids`` tells.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    num_tokens: int | None = None
    finish_reason: str | None = None
    times_s: list[float] = field(default_factory=list)
    num_first_tokens: int = 1

    def put(self, event: dict[str, Any], time_s: float) -> None:
        """Add what one event brings.

        Args:
            event: A ``text_completion`` chunk. The last one may bring ``usage`` and no choice.
            time_s: When it came.

        Raises:
            ValueError: if the event is an error, or no chunk of a completion.
        """
        if event.get("error"):
            raise ValueError(f"it holds an error: {error_message(event)}")
        try:
            if event.get("usage"):
                self.num_tokens = int(event["usage"]["completion_tokens"])
            for choice in event["choices"]:
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
                self._add(choice["text"] or "", choice.get("token_ids") or [], time_s)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"it holds what is no part of a completion: {shown(json.dumps(event))}") from error

    def _add(self, text: str, token_ids: list[int], time_s: float) -> None:
        is_first = not self.times_s
        if text or token_ids or (is_first and self.finish_reason):
            self.times_s.append(time_s)
            self.num_first_tokens = max(len(token_ids), 1) if is_first else self.num_first_tokens
        self.text += text
        self.token_ids += token_ids


def event_of(data: str) -> dict[str, Any] | None:
    """The event that the data of a stream hold; ``None`` for the end mark.

    Raises:
        ValueError: if they are no JSON object.
    """
    if data.strip() == "[DONE]":
        return None
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise ValueError(f"it holds what is no JSON object: {shown(data)}")
    return event


def error_message(body: Any) -> str:
    """The message in a server's error: ``error.message``, ``error``, ``message`` or ``detail``, else all of it."""
    if isinstance(body, dict):
        error = body.get("error")
        inner = error.get("message") if isinstance(error, dict) else error
        body = inner or body.get("message") or body.get("detail") or body
    return shown(body if isinstance(body, str) else json.dumps(body))


def shown(text: str) -> str:
    """On one line, and cut where it is long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _MOST_SHOWN else flat[:_MOST_SHOWN] + "..."
