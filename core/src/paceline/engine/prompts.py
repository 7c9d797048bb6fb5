"""Prompts as callers give them: text, or a mapping."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

from paceline.api.errors import did_you_mean
from paceline.engine.errors import RequestError
from paceline.kv.retention import NO_RETENTION, Retention

__all__ = ["Prompt", "parse_prompt", "parse_prompts"]

_KEYS = (
    "prompt",
    "prompt_token_ids",
    "cache_salt",
    "trust_domain",
    "metadata",
    "num_speculative_tokens",
    "priority",
    "retention",
)
_RETENTION_KEYS = ("priority", "duration_s")
_MAX_TOKEN_ID = 2**62


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Attributes:
        text: The text, if it was given.
        token_ids: int64 tokens, if they were given.
        cache_salt: KV is shared within a salt only.
        trust_domain: The salt if not given.
        metadata: The caller's own fields, for cache identity contributors and others.
        num_speculative_tokens: The request's own draft limit; 0 = off.
        priority: The lower, the sooner it is served.
        retention: What it asks of the cache for its blocks.
    """

    text: str | None = None
    token_ids: np.ndarray | None = None
    cache_salt: str = ""
    trust_domain: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    num_speculative_tokens: int | None = None
    priority: int = 0
    retention: Retention = NO_RETENTION


def parse_prompts(prompts: Any) -> list[Prompt]:
    """One prompt or a sequence of them.

    Raises:
        RequestError: naming the prompt and what is wrong with it.
    """
    if isinstance(prompts, str | Mapping):
        prompts = [prompts]
    if not isinstance(prompts, Sequence):
        raise RequestError(f"prompts is a {type(prompts).__name__}; give a string, a mapping, or a list of them")
    return [parse_prompt(prompt, index) for index, prompt in enumerate(prompts)]


def parse_prompt(prompt: Any, index: int = 0) -> Prompt:
    """A prompt from a string or a mapping.

    Raises:
        RequestError: naming what is wrong with it.
    """
    if isinstance(prompt, str):
        return Prompt(text=prompt)
    if not isinstance(prompt, Mapping):
        raise RequestError(f"prompt {index} is a {type(prompt).__name__}; give a string or a mapping")
    for key in prompt:
        if key not in _KEYS:
            raise RequestError(f'prompt {index} has the unknown key "{key}"{did_you_mean(str(key), _KEYS)}')
    text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and token_ids is None:
        raise RequestError(f'prompt {index} has neither "prompt" nor "prompt_token_ids"; give one of them')
    if text is not None and not isinstance(text, str):
        raise RequestError(f'prompt {index}: "prompt" is a {type(text).__name__}; give a string')
    salt = _string(prompt, "cache_salt", index)
    return Prompt(
        text=text,
        token_ids=None if token_ids is None else _token_ids(token_ids, index),
        cache_salt=salt,
        trust_domain=_string(prompt, "trust_domain", index) or salt,
        metadata=_metadata(prompt, index),
        num_speculative_tokens=_draft_limit(prompt, index),
        priority=_priority(prompt, index),
        retention=_retention(prompt, index),
    )


def _string(prompt: Mapping[str, Any], key: str, index: int) -> str:
    value = prompt.get(key)
    if value is not None and not isinstance(value, str):
        raise RequestError(f'prompt {index}: "{key}" is a {type(value).__name__}; give a string')
    return value or ""


def _metadata(prompt: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    value = prompt.get("metadata")
    if value is not None and not isinstance(value, Mapping):
        raise RequestError(f'prompt {index}: "metadata" is a {type(value).__name__}; give a mapping')
    return value or {}


def _draft_limit(prompt: Mapping[str, Any], index: int) -> int | None:
    value = prompt.get("num_speculative_tokens")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise RequestError(f'prompt {index}: "num_speculative_tokens" is {value!r}; give 0 (off) or more')
    return value


def _is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _priority(prompt: Mapping[str, Any], index: int) -> int:
    value = prompt.get("priority")
    if value is not None and not _is_int(value):
        raise RequestError(f'prompt {index}: "priority" is {value!r}; give an integer (the lower, the sooner served)')
    return value or 0


def _retention(prompt: Mapping[str, Any], index: int) -> Retention:
    given = prompt.get("retention")
    if given is None:
        return NO_RETENTION
    if not isinstance(given, Mapping):
        raise RequestError(f'prompt {index}: "retention" is a {type(given).__name__}; give a mapping')
    for key in given:
        if key not in _RETENTION_KEYS:
            known = did_you_mean(str(key), _RETENTION_KEYS)
            raise RequestError(f'prompt {index}: "retention" has the unknown key "{key}"{known}')
    priority, duration_s = given.get("priority"), given.get("duration_s")
    if not _is_int(priority) or priority < 1:
        raise RequestError(
            f'prompt {index}: retention "priority" is {priority!r}; give an integer from 1 on (the higher, the longer '
            "its blocks should stay)"
        )
    is_number = _is_int(duration_s) or isinstance(duration_s, float)
    if duration_s is not None and not (is_number and 0 < duration_s < math.inf):
        raise RequestError(
            f'prompt {index}: retention "duration_s" is {duration_s!r}; give seconds above 0, or nothing for no end'
        )
    return Retention(priority, None if duration_s is None else float(duration_s))


def _token_ids(values: Any, index: int) -> np.ndarray:
    """Whole numbers only; their bounds are checked at admission."""
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise RequestError(f'prompt {index}: "prompt_token_ids" is a {type(values).__name__}; give a list of token ids')
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or abs(int(value)) > _MAX_TOKEN_ID:
            raise RequestError(
                f"prompt {index}: token {value!r} at position {position} is no token id; give integers from 0 on"
            )
    return np.array(values, dtype=np.int64)
