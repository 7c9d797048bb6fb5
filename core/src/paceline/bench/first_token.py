"""``paceline bench first-token``: how long a long prompt takes to its first token, cold and with its prefix cached."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.bench.lineup import Contest, load_baseline
from paceline.bench.progress import BenchProgress
from paceline.bench.stats import Spread, paired_ratios, spread
from paceline.bench.transformers_engine import TransformersEngine
from paceline.engine.llm import LLM
from paceline.sampling.params import SamplingParams

__all__ = ["FirstToken", "first_token"]


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Seconds to the first token of one prompt alone, over the rounds.

    Attributes:
        num_prompt_tokens: Length of the prompt.
        times_s: By name: ``transformers``, ``cold`` (nothing cached) and ``warm`` (the same prompt, asked before).
        cold_speedup: transformers' time over the cold one, round by round.
        warm_speedup: The cold time over the warm one, round by round.
    """

    num_prompt_tokens: int
    times_s: dict[str, Spread]
    cold_speedup: Spread
    warm_speedup: Spread

    def to_json(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return asdict(self)


def first_token(contest: Contest, num_prompt_tokens: int, num_rounds: int, progress: BenchProgress) -> FirstToken:
    """Measure in interleaved rounds, after one that is not measured; each round has a prompt of its own.

    Raises:
        PacelineError: from whatever refuses.
    """
    progress.show("loading")
    baseline = TransformersEngine(load_baseline(contest).loaded, ignore_eos=True)
    options = {"numerics": contest.numerics, "max_model_len": num_prompt_tokens + 16, "max_num_batched_tokens": 8192}
    times: dict[str, dict[int, float]] = {"transformers": {}, "cold": {}, "warm": {}}
    with LLM(contest.model, **(options | contest.engine_options)) as llm:
        progress.start(3 * (num_rounds + 1))
        for round_index in range(-1, num_rounds):
            prompt = _prompt(round_index, num_prompt_tokens, llm.built.facts.vocab_size)
            runs = {
                "transformers": lambda prompt=prompt: baseline.generate([prompt], 1),
                "cold": lambda prompt=prompt: _ask(llm, prompt),
                "warm": lambda prompt=prompt: _ask(llm, prompt),
            }
            for name, run in runs.items():
                progress.turn(f"round {round_index + 1}, {name}")
                times[name][round_index] = _timed(run)
    measured = {name: {index: s for index, s in own.items() if index >= 0} for name, own in times.items()}
    return FirstToken(
        num_prompt_tokens,
        {name: spread(own.values()) for name, own in measured.items()},
        spread(paired_ratios(measured["transformers"], measured["cold"])),
        spread(paired_ratios(measured["cold"], measured["warm"])),
    )


def _prompt(round_index: int, num_tokens: int, vocab_size: int) -> list[int]:
    drawn: list[int] = np.random.default_rng(round_index + 1).integers(0, vocab_size, num_tokens).tolist()
    return drawn


def _ask(llm: LLM, prompt: list[int]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)


def _timed(run: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s
