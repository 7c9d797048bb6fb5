"""Admission: a request is checked whole before anything is queued; what can never be served is refused at once."""

from __future__ import annotations

import secrets
from collections.abc import Container

import numpy as np

from paceline.api import RequestFacts
from paceline.engine.errors import RequestError, RequestTooLongError
from paceline.engine.request import Request
from paceline.kv.manager import KVManager
from paceline.sampling.noise import derive_seed
from paceline.sampling.params import SamplingParams

__all__ = ["Admission"]


class Admission:
    """Makes requests. Unseeded ones get a random 64-bit seed; ``seed`` makes that sequence repeatable.

    Args:
        kv: Tells what can ever fit.
        vocab_size: Ids below it may stand in a prompt.
        max_model_len: Longest sequence in tokens.
        eos_token_ids: End tokens of the checkpoint.
        seed: Seeds the admission.
    """

    def __init__(
        self,
        kv: KVManager,
        *,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: tuple[int, ...],
        seed: int | None,
    ) -> None:
        self._kv = kv
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        self._seed = secrets.randbits(64) if seed is None else seed
        self._num_unseeded = 0

    def request(
        self,
        facts: RequestFacts,
        prompt_token_ids: np.ndarray,
        params: SamplingParams,
        prompt: str | None,
        draft_limit: int | None,
        live: Container[str],
        now_s: float,
    ) -> Request:
        """A request ready to be queued.

        Raises:
            RequestError: naming what is wrong with the prompt or the parameters.
            RequestTooLongError: if it can never fit into the model or the KV cache.
        """
        if facts.request_id in live:
            raise RequestError(f'request id "{facts.request_id}" is in use by a live request; choose another')
        if draft_limit is not None and draft_limit < 0:
            raise RequestError(f"num_speculative_tokens is {draft_limit}; it must be 0 (off) or more")
        self._check_prompt(facts.request_id, prompt_token_ids)
        self._check_stop_ids(facts.request_id, params)
        max_num_tokens = self._max_num_tokens(facts.request_id, len(prompt_token_ids), params.max_tokens)
        return Request(
            facts=facts,
            prompt=prompt,
            prompt_token_ids=prompt_token_ids,
            params=params,
            seed=self._seed_of(params),
            stop_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos_token_ids),
            max_num_tokens=max_num_tokens,
            draft_limit=draft_limit,
            arrival_time_s=now_s,
        )

    def _check_prompt(self, request_id: str, tokens: np.ndarray) -> None:
        if not len(tokens):
            raise RequestError(f'request "{request_id}": the prompt is empty; give at least one token')
        bad = np.flatnonzero((tokens < 0) | (tokens >= self._vocab_size))
        if len(bad):
            raise RequestError(
                f'request "{request_id}": prompt token {tokens[bad[0]]} at position {bad[0]} is outside '
                f"the vocabulary of {self._vocab_size}; ids go from 0 to {self._vocab_size - 1}"
            )

    def _check_stop_ids(self, request_id: str, params: SamplingParams) -> None:
        bad = [token for token in params.stop_token_ids if not 0 <= token < self._vocab_size]
        if bad:
            raise RequestError(
                f'request "{request_id}": stop token id {bad[0]} is outside the vocabulary of {self._vocab_size}'
            )

    def _max_num_tokens(self, request_id: str, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """The length at which it ends: its own cap, the model's, or the pool's, whichever comes first."""
        if num_prompt_tokens >= self._max_model_len:
            raise RequestTooLongError(
                f'request "{request_id}": the prompt has {num_prompt_tokens} tokens, and max_model_len is '
                f"{self._max_model_len}, which must hold at least one more; shorten it or raise max_model_len"
            )
        if not self._kv.can_ever_fit(num_prompt_tokens):
            raise RequestTooLongError(
                f'request "{request_id}": the prompt has {num_prompt_tokens} tokens, and the whole KV cache holds '
                f"{self._kv.capacity_tokens}; shorten it or give the cache more blocks (num_gpu_blocks_override, "
                "kv_cache_memory_bytes or gpu_memory_utilization)"
            )
        longest = min(self._max_model_len, self._kv.capacity_tokens + 1)
        return longest if max_tokens is None else min(longest, num_prompt_tokens + max_tokens)

    def _seed_of(self, params: SamplingParams) -> int:
        if params.seed is not None:
            return params.seed % 2**64
        self._num_unseeded += 1
        return derive_seed(self._seed, self._num_unseeded - 1)
