"""A running OpenAI-compatible server under measurement."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from paceline.bench.completions import Completion
from paceline.bench.errors import ServerOutputError
from paceline.bench.plan import Prompts
from paceline.bench.records import RequestRecord, Run
from paceline.bench.server import Server

__all__ = ["ServerEngine"]

_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_GREEDY = {"temperature": 0.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_VLLM_FIELDS = {"repetition_penalty": 1.0, "return_token_ids": True}
"""No penalty from the checkpoint's defaults, and the ids of the emitted tokens; most other servers ignore them."""


class ServerEngine:
    """A model behind a server, greedy, all requests sent at once, each prompt as token ids.

    Output tokens are the ids that the server tells (vLLM does), else those of its text. Times are those at which its
    events arrive here. Every run has a cache salt of its own, which vLLM heeds.

    Args:
        server: The server.
        tokenize: Text to token ids, for a server that tells none.
        ignore_eos: Whether to go on past the end token; a field of vLLM's.
    """

    max_batch: int | None = None

    def __init__(self, server: Server, tokenize: Callable[[str], list[int]], *, ignore_eos: bool) -> None:
        self.name = f"server {server.url.removesuffix('/v1')} ({server.model})"
        self._server = server
        self._tokenize = tokenize
        self._ignore_eos = ignore_eos
        self._tells_token_ids = True

    @property
    def facts(self) -> dict[str, Any]:
        """Where it is and what is known of its figures, ready for JSON."""
        return {
            "url": self._server.url,
            "model": self._server.model,
            "outputs_compared_by": "token ids" if self._tells_token_ids else "text, tokenized again",
            "prefix_sharing": "a cache_salt per run, which vLLM heeds; other servers may reuse what they computed",
            "not_controlled": "whether its weights are the same, its threads, dtype, KV cache and settings",
        }

    def generate(self, prompts: Prompts, max_tokens: int) -> Run:
        """Run the prompts concurrently.

        Raises:
            ServerOutputError: if an output is too short.
            PacelineError: if the server cannot be reached, refuses a request or breaks off.
        """
        salt = f"paceline bench {uuid.uuid4().hex}"
        bodies = [self._body(prompt, max_tokens, salt) for prompt in prompts]
        started_s = time.perf_counter()
        completions = self._server.complete(bodies)
        seconds = time.perf_counter() - started_s
        for completion in completions:
            self._check_length(completion, max_tokens)
        return Run(seconds, [self._record(completion, started_s) for completion in completions])

    def _body(self, prompt: Sequence[int], max_tokens: int, salt: str) -> dict[str, Any]:
        own: dict[str, Any] = {"prompt": list(prompt), "max_tokens": max_tokens, "cache_salt": salt}
        going_on = {"ignore_eos": True} if self._ignore_eos else {}
        return own | going_on | _STREAMED | _GREEDY | _VLLM_FIELDS

    def _check_length(self, completion: Completion, max_tokens: int) -> None:
        may_stop = completion.finish_reason == "stop" and not self._ignore_eos
        num_tokens = len(completion.token_ids) or completion.num_tokens
        if may_stop or num_tokens is None or num_tokens >= max_tokens:
            return
        remedy = "compare without --ignore-eos, a field of vLLM's" if self._ignore_eos else "raise its own limits"
        raise ServerOutputError(
            f"{self.name} emitted {num_tokens} of {max_tokens} tokens and ended them with "
            f'"{completion.finish_reason}"; {remedy}'
        )

    def _record(self, completion: Completion, started_s: float) -> RequestRecord:
        token_ids, text_num_tokens = completion.token_ids, None
        if not token_ids:
            self._tells_token_ids = False
            token_ids = self._tokenize(completion.text)
            text_num_tokens = len(token_ids) if completion.num_tokens is None else completion.num_tokens
        record = RequestRecord(token_ids, completion.times_s[0] - started_s, None, text_num_tokens)
        num_later = record.num_tokens - completion.num_first_tokens
        if len(completion.times_s) > 1 and num_later > 0:
            record.tpot_s = (completion.times_s[-1] - completion.times_s[0]) / num_later
        return record
