"""What requests and steps give back."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paceline.engine.metrics import RequestMetrics

__all__ = ["CompletionOutput", "Logprob", "RequestOutput", "StepResult"]


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
        logprobs: Per emitted token, ``token id -> Logprob`` for it and the top ones; ``None`` if not asked for.
        finish_reason: ``"stop"``, ``"length"``, ``"abort"`` or ``"error"``.
        stop_reason: The stop token id asked for by the request, if one ended it.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A request and its completions.

    Attributes:
        request_id: The request.
        prompt: Its text, if it was given as text.
        prompt_token_ids: Its tokens.
        outputs: Its completions.
        finished: Whether it has ended.
        metrics: What it cost.
        num_cached_tokens: Prompt tokens taken from the prefix cache.
        error: Message of the error that ended it, with its code.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int
    error: str | None = None


@dataclass(slots=True)
class StepResult:
    """What a step brought.

    Attributes:
        new_tokens: ``request id -> int64 tokens`` emitted in this step.
        finished: Outputs of the requests that ended.
    """

    new_tokens: dict[str, np.ndarray] = field(default_factory=dict)
    finished: list[RequestOutput] = field(default_factory=list)
