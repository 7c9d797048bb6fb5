"""The state of a request: known tokens, and how many of them are computed."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from paceline.api import RequestFacts, RequestView, SamplingFacts
from paceline.engine.metrics import RequestMetrics
from paceline.engine.outputs import Logprob
from paceline.engine.text import OutputText
from paceline.kv.retention import NO_RETENTION
from paceline.sampling.params import SamplingParams

__all__ = ["FinishReason", "Request"]


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Request:
    """One request. The engine alone writes it.

    Known tokens are the prompt and what was emitted; computed tokens are those whose target KV is in place. Each step
    lets computed catch up with known; a request emits when it has caught up.
    """

    __slots__ = (
        "_tokens",
        "bad_word_ids",
        "constraints",
        "draft_limit",
        "error",
        "facts",
        "finish_reason",
        "logprobs",
        "max_num_tokens",
        "may_publish",
        "metrics",
        "num_computed",
        "num_once_computed",
        "num_prompt_tokens",
        "num_restored",
        "num_tokens",
        "params",
        "priority",
        "prompt",
        "prompt_logprobs",
        "rank",
        "retention",
        "row",
        "sample_index",
        "sampling",
        "stop_ids",
        "stop_reason",
        "text",
        "write_from",
    )

    def __init__(
        self,
        *,
        facts: RequestFacts,
        prompt: str | None,
        prompt_token_ids: np.ndarray,
        params: SamplingParams,
        seed: int,
        stop_ids: frozenset[int],
        max_num_tokens: int,
        draft_limit: int | None,
        arrival_time_s: float,
        bad_word_ids: Sequence[Sequence[int]] = (),
        constraints: Sequence[tuple[int, Any]] = (),
        sample_index: int = 0,
        text: OutputText | None = None,
    ) -> None:
        self.facts = facts
        self.prompt = prompt
        self.params = params
        self.sampling = SamplingFacts(
            temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p, seed=seed
        )
        self.stop_ids = stop_ids
        self.max_num_tokens = max_num_tokens
        self.draft_limit = draft_limit
        self.bad_word_ids = bad_word_ids
        self.constraints = constraints  # numbers of the engine's constraints, and what each is asked
        self.sample_index = sample_index
        self.text = text  # kept only where stop strings or a stream need it
        self.num_prompt_tokens = self.num_tokens = len(prompt_token_ids)
        self._tokens = np.empty(max_num_tokens, dtype=np.int64)
        self._tokens[: self.num_tokens] = prompt_token_ids
        self.metrics = RequestMetrics(arrival_time_s=arrival_time_s)
        self.logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = (
            None if params.prompt_logprobs is None else [None]
        )
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self.priority = 0  # the lower, the sooner it is served
        self.rank = (0, 0)  # its place in the scheduler's queues: priority, then arrival
        self.retention = NO_RETENTION
        self.row = -1  # of the block table, while admitted
        self.num_computed = 0
        self.num_once_computed = 0  # most ever computed: below it, work is repeated
        self.num_restored = 0  # taken from the prefix cache and not yet told to the proposer
        self.may_publish = True  # cleared when its KV is not finite
        self.write_from = 0  # KV of earlier positions came from the prefix cache and is not written

    @property
    def request_id(self) -> str:
        """Its id, unique among live requests."""
        return self.facts.request_id

    @property
    def tokens(self) -> np.ndarray:
        """int64 ``[num_tokens]``: prompt and output; a view that must not be written."""
        view = self._tokens[: self.num_tokens]
        view.flags.writeable = False
        return view

    @property
    def num_uncomputed(self) -> int:
        """Known tokens whose target KV is missing; 1 while decoding."""
        return self.num_tokens - self.num_computed

    @property
    def num_output_tokens(self) -> int:
        """Tokens emitted so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def room(self) -> int:
        """Tokens that it may still emit."""
        return self.max_num_tokens - self.num_tokens

    @property
    def num_prompt_logprobs(self) -> int:
        """Prompt tokens that have their entry."""
        return 0 if self.prompt_logprobs is None else len(self.prompt_logprobs)

    @property
    def misses_prompt_logprobs(self) -> bool:
        """Whether prompt tokens must be computed for their own scores, so that their KV may not come from a cache."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt_tokens

    def append(self, tokens: np.ndarray) -> None:
        """Add emitted tokens; they fit, as the verifier cuts at ``room``."""
        assert len(tokens) <= self.room, "emitted past the limit"
        self._tokens[self.num_tokens : self.num_tokens + len(tokens)] = tokens
        self.num_tokens += len(tokens)

    def view(self) -> RequestView:
        """What a proposer sees of it now."""
        return RequestView(
            request_id=self.request_id,
            tokens=self.tokens,
            num_prompt_tokens=self.num_prompt_tokens,
            sampling=self.sampling,
            trust_domain=self.facts.trust_domain,
        )
