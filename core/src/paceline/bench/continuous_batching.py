"""transformers' continuous batching under measurement: its own scheduler over its own paged KV cache."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig

from paceline.bench.errors import BenchError, ContinuousBatchingError
from paceline.bench.plan import Prompts
from paceline.bench.records import Run, timed
from paceline.model.loading import LoadedModel

__all__ = ["ContinuousBatchingEngine"]

MAX_BATCH_TOKENS = 2048
"""Most tokens in a pass, as many as Paceline's own default."""

PAGE_SIZE = 256
"""Tokens of a page of KV, transformers' own default."""

_REFUSALS = (AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError, BenchError)
"""What transformers raises, at the start or in a request, for a model that it cannot run so."""


class ContinuousBatchingEngine:
    """transformers' ``ContinuousBatchingManager``, greedy, on the model that ``generate`` runs on as well.

    The KV cache is made once and kept until ``close``; between runs the manager's thread is stopped. It holds every
    request at full length, so none is preempted. No KV is shared between requests.

    Args:
        loaded: The model, in transformers' own attention (``use_own_attention``), which it has again after every run.
        ignore_eos: Whether to go on past the end token.
        longest: Most tokens of a sequence, prompt and output.
        max_requests: Most concurrent requests.

    Raises:
        ContinuousBatchingError: if a first request fails.
    """

    name = "transformers continuous batching"
    max_batch: int | None = None

    def __init__(self, loaded: LoadedModel, *, ignore_eos: bool, longest: int, max_requests: int) -> None:
        self._model = loaded.model
        eos_token_id = [-1] if ignore_eos else list(loaded.eos_token_ids) or [-1]  # -1: transformers' "none"
        self._generation = GenerationConfig(do_sample=False, eos_token_id=eos_token_id)
        self._config = _sized(longest, max_requests)
        self._try(loaded)

    @property
    def facts(self) -> dict[str, Any]:
        """Its settings, ready for JSON."""
        names = ("num_blocks", "max_batch_tokens", "max_requests_per_batch", "allow_block_sharing")
        return {"page_size": PAGE_SIZE} | {name: getattr(self._config, name) for name in names}

    def generate(self, prompts: Prompts, max_tokens: int) -> Run:
        """Run the prompts concurrently.

        Raises:
            BenchError: if a request fails.
        """
        with self._started() as manager:
            started_s = time.perf_counter()
            ids = manager.add_requests([list(prompt) for prompt in prompts], max_tokens, record_timestamps=True)
            outputs = _finished(manager, len(ids))
            seconds = time.perf_counter() - started_s
            num_passes = manager.current_batch
        requests = [timed(outputs[i].generated_tokens, [at - started_s for at in outputs[i].timestamps]) for i in ids]
        return Run(seconds, requests, num_passes=num_passes)

    def close(self) -> None:
        """Give the KV cache back."""
        self._model.destroy_cached_continuous_batching_manager()

    def _started(self) -> AbstractContextManager[Any]:
        manager: AbstractContextManager[Any] = self._model.continuous_batching_context_manager(
            generation_config=self._generation, continuous_batching_config=self._config, persistent_manager=True
        )
        return manager

    def _try(self, loaded: LoadedModel) -> None:
        attention = loaded.model.config._attn_implementation
        self.close()  # transformers would go on with a cache that another engine left, whatever its size
        try:
            self.generate([[0]], 1)
        except _REFUSALS as error:
            self.close()
            # Where it fails before its thread runs, it leaves the model in paged attention.
            loaded.model.set_attn_implementation(attention)
            raise ContinuousBatchingError(
                f'transformers\' continuous batching cannot run "{loaded.name}" ({type(loaded.model).__name__}): '
                f"{type(error).__name__}: {error}; leave it out with --baseline generate or --baseline prompt-lookup"
            ) from error


def _sized(longest: int, max_requests: int) -> ContinuousBatchingConfig:
    """Settings for so many requests of that length; left alone, transformers takes most of the memory for KV.

    Two fields go by the release: the page's, which was a block's, and the switch to flash attention, which came later.
    """
    known = {field.name for field in fields(ContinuousBatchingConfig)}
    settings: dict[str, Any] = {"page_size" if "page_size" in known else "block_size": PAGE_SIZE}
    if "auto_switch_to_flash" in known:
        settings["auto_switch_to_flash"] = False
    return ContinuousBatchingConfig(
        num_blocks=max_requests * math.ceil(longest / PAGE_SIZE),
        max_batch_tokens=min(MAX_BATCH_TOKENS, max_requests * longest),
        max_requests_per_batch=max_requests,
        safety_margin=0.0,
        allow_block_sharing=False,
        **settings,
    )


def _finished(manager: Any, num_requests: int) -> dict[str, Any]:
    """``request id -> its output``, when all are there."""
    outputs: dict[str, Any] = {}
    while len(outputs) < num_requests:
        output = manager.get_result(timeout=1.0)
        if output is None and not manager.is_running():
            raise BenchError(f"{ContinuousBatchingEngine.name} stopped with {len(outputs)} of {num_requests} requests")
        if output is not None and output.error is not None:
            raise BenchError(f"a request failed in {ContinuousBatchingEngine.name}: {output.error}")
        if output is not None:
            outputs[output.request_id] = output
    return outputs
