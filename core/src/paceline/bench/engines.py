"""The engines under measurement, behind one method."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from transformers import GenerationConfig

from paceline.bench.errors import BenchError
from paceline.bench.records import RequestRecord, Run
from paceline.engine.llm import LLM
from paceline.engine.metrics import EngineStats
from paceline.engine.outputs import RequestOutput
from paceline.model.loading import LoadedModel
from paceline.sampling.params import SamplingParams

__all__ = ["BenchEngine", "PacelineEngine", "TransformersEngine", "plain_logits", "use_own_attention"]

Prompts = Sequence[Sequence[int]]


class BenchEngine(Protocol):
    """Something that generates.

    Attributes:
        name: Its name in the report.
        max_batch: Most concurrent requests; ``None`` = any number.
    """

    name: str
    max_batch: int | None

    def generate(self, prompts: Prompts, max_tokens: int) -> Run:
        """Run the prompts together, greedily, and time it."""
        ...


class _PassClock:
    """A streamer: notes when each pass's tokens arrive, and how many there are per row."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.num_tokens: list[int] = []
        self._saw_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt, then with ``[rows]`` or, when assisted, ``[1, tokens]`` after every pass."""
        if self._saw_prompt:
            self.times_s.append(time.perf_counter())
            self.num_tokens.append(value.shape[-1] if value.dim() == 2 else 1)
        self._saw_prompt = True

    def end(self) -> None:
        """Nothing is held back."""

    def token_times_s(self) -> np.ndarray:
        """When the n-th token of every row arrived."""
        return np.repeat(self.times_s, self.num_tokens)


class TransformersEngine:
    """transformers' ``generate`` on a model in its own attention, greedy, in one left-padded batch.

    Args:
        loaded: The model, whose attention is transformers' own (``use_own_attention``).
        ignore_eos: Whether to go on past the end token.
        lookup_tokens: Draft so many tokens by prompt lookup; 0 = none. Takes one request at a time.
    """

    def __init__(self, loaded: LoadedModel, *, ignore_eos: bool, lookup_tokens: int = 0) -> None:
        self.name = "transformers + prompt lookup" if lookup_tokens else "transformers"
        self.max_batch = 1 if lookup_tokens else None
        self._model = loaded.model
        self._eos_token_ids = () if ignore_eos else loaded.eos_token_ids
        self._pad_token_id = min(loaded.eos_token_ids, default=0)
        self._extra = {"prompt_lookup_num_tokens": lookup_tokens} if lookup_tokens else {}

    def generate(self, prompts: Prompts, max_tokens: int) -> Run:
        """Run the prompts as one batch that ends with its longest output."""
        self._model.generation_config = self._greedy()
        input_ids, mask = _left_padded(prompts, self._pad_token_id)
        clock = _PassClock()
        started_s = time.perf_counter()
        sequences = self._model.generate(
            input_ids=input_ids.to(self._model.device),
            attention_mask=mask.to(self._model.device),
            max_new_tokens=max_tokens,
            streamer=clock,
            **self._extra,
        )
        seconds = time.perf_counter() - started_s
        rows = sequences[:, input_ids.shape[1] :].tolist()
        times_s = clock.token_times_s() - started_s
        requests = [_timed(_until_end(row, self._eos_token_ids), times_s) for row in rows]
        return Run(seconds, requests, num_passes=len(clock.times_s))

    def _greedy(self) -> GenerationConfig:
        """Plain greedy decoding: the checkpoint's own defaults may bring sampling or penalties."""
        eos_token_id = list(self._eos_token_ids) or None
        return GenerationConfig(do_sample=False, eos_token_id=eos_token_id, pad_token_id=self._pad_token_id)


def _left_padded(prompts: Prompts, pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), pad_token_id)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids, mask


def _until_end(tokens: list[int], eos_token_ids: Sequence[int]) -> list[int]:
    end = next((index for index, token in enumerate(tokens) if token in eos_token_ids), len(tokens))
    return tokens[: end + 1]


def _timed(tokens: list[int], times_s: np.ndarray) -> RequestRecord:
    first_s, last_s = float(times_s[0]), float(times_s[len(tokens) - 1])
    tpot_s = (last_s - first_s) / (len(tokens) - 1) if len(tokens) > 1 else None
    return RequestRecord(tokens, first_s, tpot_s)


class PacelineEngine:
    """Paceline, as ``LLM.generate`` runs it.

    Every run has a cache salt of its own, so KV of one run never serves another, whatever the configuration.

    Args:
        name: Its name in the report.
        llm: The engine.
        ignore_eos: Whether to go on past the end token.
    """

    max_batch: int | None = None

    def __init__(self, name: str, llm: LLM, *, ignore_eos: bool) -> None:
        self.name = name
        self.llm = llm
        self._ignore_eos = ignore_eos
        self._num_runs = 0

    def generate(self, prompts: Prompts, max_tokens: int) -> Run:
        """Run the prompts concurrently, greedily."""
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=self._ignore_eos)
        return self.sample(prompts, [params] * len(prompts))

    def sample(self, prompts: Prompts, params: Sequence[SamplingParams]) -> Run:
        """Run the prompts concurrently with parameters of their own.

        Raises:
            BenchError: if a request ends with an error.
        """
        self._num_runs += 1
        asked = [{"prompt_token_ids": list(ids), "cache_salt": f"bench run {self._num_runs}"} for ids in prompts]
        before = self.llm.engine.stats.snapshot()
        started_s = time.perf_counter()
        outputs = self.llm.generate(asked, params, use_tqdm=False)
        seconds = time.perf_counter() - started_s
        failed = next((output.error for output in outputs if output.error), None)
        if failed is not None:
            raise BenchError(f"a request failed in {self.name}: {failed}")
        return _paceline_run(seconds, outputs, before, self.llm.engine.stats)


def _paceline_run(seconds: float, outputs: list[RequestOutput], before: EngineStats, after: EngineStats) -> Run:
    return Run(
        seconds,
        [_record(output) for output in outputs],
        num_passes=after.num_steps - before.num_steps,
        num_drafts=sum(output.metrics.num_drafts for output in outputs),
        num_draft_tokens=after.num_draft_tokens - before.num_draft_tokens,
        num_accepted_tokens=after.num_accepted_tokens - before.num_accepted_tokens,
        draft_time_s=after.draft_time_s - before.draft_time_s,
        verify_time_s=after.verify_time_s - before.verify_time_s,
    )


def _record(output: RequestOutput) -> RequestRecord:
    ttft_s = output.metrics.ttft_s
    assert ttft_s is not None, "a request without an error emits at least one token"
    return RequestRecord(output.outputs[0].token_ids, ttft_s, output.metrics.tpot_s)


def use_own_attention(loaded: LoadedModel) -> str:
    """Give a loaded model transformers' own attention, the fastest it has without extra packages; returns its name."""
    name = "sdpa" if loaded.model._supports_sdpa else "eager"
    loaded.model.set_attn_implementation(name)
    return name


def plain_logits(loaded: LoadedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Raw scores float32 ``[vocab]`` of the next token: one forward over all tokens, nothing cached."""
    ids = torch.tensor([list(token_ids)], device=loaded.device)
    with torch.inference_mode():
        logits = loaded.model(input_ids=ids, use_cache=False).logits
    return logits[0, -1, : loaded.num_token_ids].float()
