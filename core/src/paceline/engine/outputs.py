"""What requests and steps give back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.engine.metrics import RequestMetrics

__all__ = ["CompletionOutput", "Logprob", "RequestOutput", "StepResult", "StreamDelta", "cumulative_logprob"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """Log-probability of a token under the target, before temperature and filters."""

    logprob: float
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One completion.

    Attributes:
        index: Number of the sample.
        text: Decoded output; ``""`` without a tokenizer.
        token_ids: Emitted ids, the stop token included.
        cumulative_logprob: Sum of the log-probabilities of ``token_ids``; ``None`` if ``logprobs`` is.
        logprobs: Per emitted token, ``token id -> Logprob`` for it and the top ones; ``None`` if not asked for.
        finish_reason: ``"stop"``, ``"length"``, ``"abort"`` or ``"error"``.
        stop_reason: The stop token id or stop string asked for by the request, if one ended it.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A request and its completions.

    Attributes:
        request_id: The request.
        prompt: Its text, if it was given as text.
        prompt_token_ids: Its tokens.
        prompt_logprobs: Per prompt token, ``token id -> Logprob`` for it and the top ones, ``None`` for the first,
            which nothing stands before; as far as they are computed. ``None`` if not asked for.
        outputs: Its completions, in the order of samples.
        finished: Whether it has ended.
        metrics: What it cost.
        num_cached_tokens: Prompt tokens taken from the prefix cache.
        error: Message of the error that ended it, with its code.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDelta:
    """A piece of a streamed output.

    Attributes:
        prompt_index: Which of the prompts.
        index: Number of the sample.
        text: Text that became certain; the pieces of a sample join to its whole text.
        token_ids: Tokens emitted since the last piece.
        finished: With the last piece of a prompt's last sample: the whole output.
    """

    prompt_index: int
    index: int
    text: str
    token_ids: list[int]
    finished: RequestOutput | None = None


@dataclass(slots=True)
class StepResult:
    """What a step brought.

    Attributes:
        new_tokens: ``request id -> int64 tokens`` emitted in this step.
        new_text: ``request id -> text`` that became certain, for requests whose text is streamed or searched for stops.
        finished: Outputs of the requests that ended.
    """

    new_tokens: dict[str, np.ndarray] = field(default_factory=dict)
    new_text: dict[str, str] = field(default_factory=dict)
    finished: list[RequestOutput] = field(default_factory=list)


def cumulative_logprob(token_ids: Sequence[int], logprobs: Sequence[Mapping[int, Logprob]] | None) -> float | None:
    """Sum of the tokens' own log-probabilities, exactly rounded, so that it does not depend on how they came."""
    if logprobs is None:
        return None
    return math.fsum(entries[token].logprob for token, entries in zip(token_ids, logprobs, strict=True))
