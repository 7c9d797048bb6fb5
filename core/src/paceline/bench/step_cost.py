"""``paceline bench step``: what a decoding step costs by the number of requests, and how much of it is the model's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.bench.errors import TooFewStepsError
from paceline.bench.lineup import Contest
from paceline.bench.progress import BenchProgress
from paceline.bench.stats import Spread, paired_ratios, spread
from paceline.engine.llm import LLM
from paceline.engine.prompts import Prompt
from paceline.sampling.params import SamplingParams

__all__ = ["Step", "StepCost", "StepPlan", "decoding_steps", "step_costs"]

_MOST_ROWS = 8192
_SPARE_ROOM = 64  # tokens: admission leaves each running request a block to grow into


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What is run.

    Attributes:
        batches: Numbers of requests that decode together.
        num_context_tokens: Length of their prompts.
        num_steps: Decoding steps per round and batch.
        num_rounds: Measured repetitions.
        temperature: Of all requests.
    """

    batches: Sequence[int]
    num_context_tokens: int
    num_steps: int
    num_rounds: int
    temperature: float

    @property
    def num_tokens(self) -> int:
        """Tokens of each request, so that all decode together for ``num_steps`` steps."""
        num_prompt_steps = -(-max(self.batches) * self.num_context_tokens // _MOST_ROWS)
        return self.num_steps + num_prompt_steps + 1


@dataclass(frozen=True, slots=True)
class StepCost:
    """Of steps with one row for each request; each round gives the median of its steps.

    Attributes:
        batch: Number of requests.
        step_s: Seconds of a step.
        forward_s: Of them in the model's forward; on a GPU, in enqueueing it.
        outside_share: The part of a step outside it.
        ratio: A step over one of the smallest batch, round by round.
    """

    batch: int
    step_s: Spread
    forward_s: Spread
    outside_share: Spread
    ratio: Spread


@dataclass(frozen=True, slots=True)
class Step:
    """One step, and what of it was the model's forward."""

    seconds: float
    forward_s: float


def step_costs(contest: Contest, plan: StepPlan, progress: BenchProgress) -> list[StepCost]:
    """Measure in interleaved rounds, after one that is not measured; each has prompts of its own.

    Raises:
        PacelineError: from whatever refuses.
    """
    progress.show("loading")
    options = {
        "numerics": contest.numerics,
        "max_num_seqs": max(plan.batches),
        "max_model_len": plan.num_context_tokens + plan.num_tokens + _SPARE_ROOM,
        "max_num_batched_tokens": _MOST_ROWS,
    }
    steps: dict[int, dict[int, Step]] = {batch: {} for batch in plan.batches}
    with LLM(contest.model, **(options | contest.engine_options)) as llm:
        progress.start(len(plan.batches) * (plan.num_rounds + 1))
        for round_index in range(-1, plan.num_rounds):
            for batch in plan.batches:
                progress.turn(f"round {round_index + 1}, {batch} requests")
                steps[batch][round_index] = _median_step(decoding_steps(llm, plan, batch, seed=round_index + 1))
    measured = {batch: {index: s for index, s in own.items() if index >= 0} for batch, own in steps.items()}
    return [_cost(batch, own, measured[min(plan.batches)]) for batch, own in measured.items()]


def decoding_steps(llm: LLM, plan: StepPlan, batch: int, seed: int) -> list[Step]:
    """The steps in which all requests decode, without the first, which follows their prompts.

    Raises:
        TooFewStepsError: if there are fewer than planned.
    """
    shape = (batch, plan.num_context_tokens)
    prompts = np.random.default_rng([seed, batch]).integers(0, llm.built.facts.vocab_size, shape)
    for index, prompt in enumerate(prompts):
        params = SamplingParams(temperature=plan.temperature, seed=index, max_tokens=plan.num_tokens, ignore_eos=True)
        llm.add_request(Prompt(token_ids=prompt), params)
    steps = []
    while llm.engine.has_requests:
        before_s, started_s = llm.engine.stats.forward_time_s, time.perf_counter()
        result = llm.engine.step()
        seconds = time.perf_counter() - started_s
        if len(result.new_tokens) == batch:
            steps.append(Step(seconds, llm.engine.stats.forward_time_s - before_s))
    if len(steps) <= plan.num_steps:
        raise TooFewStepsError(
            f"all {batch} requests decoded together for {max(len(steps) - 1, 0)} steps, and {plan.num_steps} are "
            f"measured; max_num_seqs is {llm.config.max_num_seqs} and max_num_batched_tokens "
            f"{llm.config.max_num_batched_tokens}: raise them, or give a shorter --context or a smaller --batch"
        )
    return steps[1 : 1 + plan.num_steps]


def _median_step(steps: Sequence[Step]) -> Step:
    return Step(statistics.median(step.seconds for step in steps), statistics.median(step.forward_s for step in steps))


def _cost(batch: int, steps: dict[int, Step], smallest: dict[int, Step]) -> StepCost:
    seconds = {index: step.seconds for index, step in steps.items()}
    return StepCost(
        batch,
        step_s=spread(seconds.values()),
        forward_s=spread(step.forward_s for step in steps.values()),
        outside_share=spread(1.0 - step.forward_s / step.seconds for step in steps.values()),
        ratio=spread(paired_ratios(seconds, {index: step.seconds for index, step in smallest.items()})),
    )
