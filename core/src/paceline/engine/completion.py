"""A request as its caller sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.engine.outputs import CompletionOutput, RequestOutput, cumulative_logprob
from paceline.engine.request import FinishReason, Request

__all__ = ["request_output"]

Decode = Callable[[Sequence[int], bool], str]


def request_output(request: Request, decode: Decode) -> RequestOutput:
    """A request as it stands.

    Args:
        request: Live or ended.
        decode: ``(token ids, skip special tokens) -> text``.
    """
    token_ids = request.tokens[request.num_prompt_tokens :].tolist()
    completion = CompletionOutput(
        index=request.sample_index,
        text=_text(request, token_ids, decode),
        token_ids=token_ids,
        cumulative_logprob=cumulative_logprob(token_ids, request.logprobs),
        logprobs=request.logprobs,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
    )
    return RequestOutput(
        request_id=request.request_id,
        prompt=request.prompt,
        prompt_token_ids=request.tokens[: request.num_prompt_tokens].tolist(),
        prompt_logprobs=request.prompt_logprobs,
        outputs=[completion],
        finished=request.finish_reason is not None,
        metrics=request.metrics,
        num_cached_tokens=request.metrics.num_cached_tokens,
        error=request.error,
    )


def _text(request: Request, token_ids: list[int], decode: Decode) -> str:
    """The stop token is emitted but is no text."""
    if request.text is not None:
        return request.text.text
    shown = token_ids[:-1] if request.finish_reason is FinishReason.STOP else token_ids
    return decode(shown, request.params.skip_special_tokens)
