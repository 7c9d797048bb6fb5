"""transformers' ``generate`` under measurement, and the plain forward that judges differences."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from transformers import GenerationConfig

from paceline.bench.plan import Prompts
from paceline.bench.records import Run, timed
from paceline.model.loading import LoadedModel

__all__ = ["TransformersEngine", "plain_logits", "use_own_attention"]


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
        times_s = (clock.token_times_s() - started_s).tolist()
        requests = [timed(_until_end(row, self._eos_token_ids), times_s) for row in rows]
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
