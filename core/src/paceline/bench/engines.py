"""The engines under measurement, behind one method."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from paceline.bench.errors import BenchError
from paceline.bench.plan import Prompts
from paceline.bench.records import RequestRecord, Run
from paceline.engine.llm import LLM
from paceline.engine.metrics import EngineStats
from paceline.engine.outputs import RequestOutput
from paceline.sampling.params import SamplingParams

__all__ = ["BenchEngine", "PacelineEngine"]


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
