"""Admission: a request is checked whole before anything is queued; what can never be served is refused at once."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from paceline.api import RequestFacts
from paceline.engine.bad_words import bad_word_ids
from paceline.engine.constraints import Constraints
from paceline.engine.errors import RequestError, RequestTooLongError
from paceline.engine.request import Request
from paceline.engine.text import OutputText
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
        constraints: Enforce the forms that requests ask for.
        encode: Text to tokens, without special tokens; ``None`` without a tokenizer.
        decode: ``(token ids, skip special tokens) -> text``; ``None`` without a tokenizer.
    """

    def __init__(
        self,
        kv: KVManager,
        *,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: tuple[int, ...],
        seed: int | None,
        constraints: Constraints,
        encode: Callable[[str], list[int]] | None = None,
        decode: Callable[[Sequence[int], bool], str] | None = None,
    ) -> None:
        self._kv = kv
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        self._seed = secrets.randbits(64) if seed is None else seed
        self._num_unseeded = 0
        self._constraints = constraints
        self._encode = encode
        self._decode = decode

    def requests(
        self,
        facts: RequestFacts,
        prompt_token_ids: np.ndarray,
        params: SamplingParams,
        prompt: str | None,
        draft_limit: int | None,
        is_live: Callable[[str], bool],
        now_s: float,
        follows_text: bool = False,
    ) -> list[Request]:
        """The requests, one for each sample, ready to be queued; the first alone is asked for prompt scores.

        Raises:
            RequestError: naming what is wrong with the prompt or the parameters.
            RequestTooLongError: if it can never fit into the model or the KV cache.
        """
        if is_live(facts.request_id):
            raise RequestError(f'request id "{facts.request_id}" is in use by a live request; choose another')
        if draft_limit is not None and draft_limit < 0:
            raise RequestError(f"num_speculative_tokens is {draft_limit}; it must be 0 (off) or more")
        self._check_prompt(facts.request_id, prompt_token_ids)
        self._check_token_ids(facts.request_id, params)
        bad_words = self._bad_words(facts.request_id, params)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos_token_ids)
        _check_choice(facts.request_id, params, stop_ids, bad_words)
        max_num_tokens = self._max_num_tokens(facts.request_id, len(prompt_token_ids), params.max_tokens)
        seed = self._seed_of(params)
        later = params.model_copy(update={"prompt_logprobs": None})
        constraints = self._constraints.resolve(facts.request_id, params, sorted(stop_ids))
        requests = [
            Request(
                facts=own_facts,
                prompt=prompt,
                prompt_token_ids=prompt_token_ids,
                params=params if index == 0 else later,
                seed=seed if params.n == 1 else derive_seed(seed, index),
                stop_ids=stop_ids,
                max_num_tokens=max_num_tokens,
                draft_limit=draft_limit,
                arrival_time_s=now_s,
                bad_word_ids=bad_words,
                constraints=constraints,
                sample_index=index,
                text=self._text(facts.request_id, params, follows_text),
            )
            for index, own_facts in enumerate(_sample_facts(facts, params.n, is_live))
        ]
        self._constraints.check(requests)
        return requests

    def _check_prompt(self, request_id: str, tokens: np.ndarray) -> None:
        if not len(tokens):
            raise RequestError(f'request "{request_id}": the prompt is empty; give at least one token')
        bad = np.flatnonzero((tokens < 0) | (tokens >= self._vocab_size))
        if len(bad):
            raise RequestError(
                f'request "{request_id}": prompt token {tokens[bad[0]]} at position {bad[0]} is outside '
                f"the vocabulary of {self._vocab_size}; ids go from 0 to {self._vocab_size - 1}"
            )

    def _check_token_ids(self, request_id: str, params: SamplingParams) -> None:
        given = {
            "stop token id": params.stop_token_ids,
            "logit_bias id": params.logit_bias,
            "allowed token id": params.allowed_token_ids or (),
        }
        for name, ids in given.items():
            bad = [token for token in ids if not 0 <= token < self._vocab_size]
            if bad:
                raise RequestError(
                    f'request "{request_id}": {name} {bad[0]} is outside the vocabulary of {self._vocab_size}'
                )

    def _bad_words(self, request_id: str, params: SamplingParams) -> list[list[int]]:
        if not params.bad_words:
            return []
        if self._encode is None:
            raise RequestError(
                f'request "{request_id}": bad_words are texts, and the model has no tokenizer to read them; '
                "ban token ids with a logit_bias of -100, or give a tokenizer"
            )
        return bad_word_ids(params.bad_words, self._encode)

    def _text(self, request_id: str, params: SamplingParams, is_wanted: bool) -> OutputText | None:
        if not params.stop and not is_wanted:
            return None
        decode = self._decode
        if decode is None:
            if not params.stop:
                return None
            raise RequestError(
                f'request "{request_id}": stop strings are searched in text, and the model has no tokenizer; '
                "use stop_token_ids, or give a tokenizer"
            )
        skips = params.skip_special_tokens
        return OutputText(
            lambda ids: decode(ids, skips), params.stop, params.include_stop_str_in_output, params.min_tokens
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


def _sample_facts(facts: RequestFacts, num_samples: int, is_live: Callable[[str], bool]) -> list[RequestFacts]:
    """Facts of each sample's own request; of several, number ``j`` is called ``<request id>-<j>``."""
    if num_samples == 1:
        return [facts]
    ids = [f"{facts.request_id}-{index}" for index in range(num_samples)]
    taken = next((request_id for request_id in ids if is_live(request_id)), None)
    if taken is not None:
        raise RequestError(f'request "{facts.request_id}": its sample id "{taken}" is in use; choose another id')
    return [replace(facts, request_id=request_id) for request_id in ids]


def _check_choice(
    request_id: str, params: SamplingParams, stop_ids: frozenset[int], bad_words: list[list[int]]
) -> None:
    """Something must be left to choose at every position, whatever stands before it."""
    if params.allowed_token_ids is None:
        return
    never = {words[0] for words in bad_words if len(words) == 1}
    early = stop_ids if params.min_tokens else frozenset()
    if not set(params.allowed_token_ids) - never - early:
        raise RequestError(
            f'request "{request_id}": of its {len(params.allowed_token_ids)} allowed_token_ids none is left: '
            "bad_words bans them, or they are stop tokens, which min_tokens bans at first; allow more"
        )
