"""``paceline bench agreement``: do proposers, no speculation and transformers emit the same tokens?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from paceline.bench.compare import greedy_judge
from paceline.bench.differences import Difference, TopTwo, locate, top_two
from paceline.bench.engines import PacelineEngine
from paceline.bench.environment import environment
from paceline.bench.lineup import NO_SPECULATION, Baseline, Contest, PacelineEngines, load_baseline
from paceline.bench.plan import Prompts
from paceline.bench.progress import BenchProgress
from paceline.bench.records import Run, merged
from paceline.bench.stats import spread
from paceline.bench.transformers_engine import TransformersEngine
from paceline.sampling.noise import derive_seed, gumbel
from paceline.sampling.params import SamplingParams
from paceline.sampling.pipeline import process
from paceline.sampling.rows import RowParams

__all__ = ["Agreement", "AgreementPlan", "Pair", "agree", "sampled_scores"]
Judge = Callable[[Sequence[int]], TopTwo]


@dataclass(frozen=True, slots=True)
class AgreementPlan:
    """What is run.

    Attributes:
        texts: The prompts, all run concurrently.
        max_tokens: Most tokens per output.
        temperature: Of the sampled outputs.
        seed: Prompt ``i`` is sampled with the ``i``-th seed derived from it.
        near_tie: Scores no further apart than this may swap places.
    """

    texts: Sequence[str]
    max_tokens: int
    temperature: float
    seed: int
    near_tie: float

    def params(self, temperature: float, ignore_eos: bool) -> list[SamplingParams]:
        """Sampling parameters of each prompt."""
        return [
            SamplingParams(temperature=temperature, seed=seed, max_tokens=self.max_tokens, ignore_eos=ignore_eos)
            for seed in self.seeds()
        ]

    def seeds(self) -> list[int]:
        """The seed of each prompt."""
        return [derive_seed(self.seed, index) for index in range(len(self.texts))]


@dataclass(slots=True)
class Pair:
    """Outputs against a reference.

    Attributes:
        name: Whose.
        reference: What they are compared with.
        sampling: How both were chosen.
        num_same: Outputs that are the same.
        num_outputs: Outputs compared.
        num_tokens: Tokens of the reference.
        num_draft_tokens: Draft tokens verified in the outputs compared.
        num_accepted_tokens: Of them accepted.
        differences: ``prompt index -> first difference``.
    """

    name: str
    reference: str
    sampling: str
    num_same: int
    num_outputs: int
    num_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    differences: dict[int, Difference]


@dataclass(slots=True)
class Agreement:
    """The result.

    Attributes:
        pairs: Each comparison.
        near_tie: What counts as a near tie.
        environment: All that the outputs depend on.
        workload: Prompts, lengths, sampling.
    """

    pairs: list[Pair]
    near_tie: float
    environment: dict[str, Any]
    workload: dict[str, Any]

    @property
    def is_lossless(self) -> bool:
        """Whether outputs differ at near ties only."""
        gaps = [difference.best.gap for pair in self.pairs for difference in pair.differences.values()]
        return all(gap <= self.near_tie for gap in gaps)

    def to_json(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {**asdict(self), "is_lossless": self.is_lossless}


def agree(contest: Contest, plan: AgreementPlan, progress: BenchProgress) -> Agreement:
    """Run every engine greedily and at the temperature, and compare.

    Greedy outputs of Paceline are compared with transformers' ``generate``, one prompt at a time; those of each
    proposer with Paceline without speculation, greedily and sampled.

    Raises:
        PacelineError: from whatever refuses, or if a request fails.
    """
    progress.show("loading transformers")
    baseline = load_baseline(contest)
    prompts = [baseline.encode(text) for text in plan.texts]
    longest = plan.max_tokens + max(map(len, prompts))
    loading = PacelineEngines(contest, longest, len(prompts), lambda name: progress.show(f"loading {name}"))
    with loading as engines:
        facts = environment(contest, baseline, engines)
        progress.start(len(prompts) + 2 * len(engines))
        transformers = _one_by_one(baseline, contest.ignore_eos, prompts, plan.max_tokens, progress)
        greedy, sampled = (
            _runs(engines, prompts, plan.params(temperature, contest.ignore_eos), progress)
            for temperature in (0.0, plan.temperature)
        )
    progress.show("comparing outputs")
    judge = greedy_judge(baseline)
    pairs = [
        _pair(name, run, "transformers", transformers, prompts, "greedy", lambda _: judge)
        for name, run in greedy.items()
    ]
    pairs += _to_no_speculation(greedy, prompts, "greedy", lambda _: judge)
    pairs += _to_no_speculation(sampled, prompts, f"temperature {plan.temperature}", _sampled_judge(baseline, plan))
    return Agreement(pairs, plan.near_tie, facts, _workload(prompts, plan))


def _one_by_one(
    baseline: Baseline, ignore_eos: bool, prompts: Prompts, max_tokens: int, progress: BenchProgress
) -> Run:
    engine = TransformersEngine(baseline.loaded, ignore_eos=ignore_eos)
    runs = []
    for index, prompt in enumerate(prompts):
        progress.turn(f"transformers, prompt {index + 1}")
        runs.append(engine.generate([prompt], max_tokens))
    return merged(runs)


def _runs(
    engines: Sequence[PacelineEngine], prompts: Prompts, params: Sequence[SamplingParams], progress: BenchProgress
) -> dict[str, Run]:
    runs = {}
    for engine in engines:
        progress.turn(f"{engine.name}, temperature {params[0].temperature}")
        runs[engine.name] = engine.sample(prompts, params)
    return runs


def _to_no_speculation(
    runs: dict[str, Run], prompts: Prompts, sampling: str, judge_of: Callable[[int], Judge]
) -> list[Pair]:
    expected = runs[NO_SPECULATION]
    return [
        _pair(name, run, NO_SPECULATION, expected, prompts, sampling, judge_of)
        for name, run in runs.items()
        if name != NO_SPECULATION
    ]


def _pair(
    name: str,
    run: Run,
    reference: str,
    expected: Run,
    prompts: Prompts,
    sampling: str,
    judge_of: Callable[[int], Judge],
) -> Pair:
    differences = {}
    for index, (prompt, own, other) in enumerate(zip(prompts, run.requests, expected.requests, strict=True)):
        found = locate(prompt, own.token_ids, other.token_ids, judge_of(index))
        if found is not None:
            differences[index] = found
    return Pair(
        name=name,
        reference=reference,
        sampling=sampling,
        num_same=len(prompts) - len(differences),
        num_outputs=len(prompts),
        num_tokens=expected.num_tokens,
        num_draft_tokens=run.num_draft_tokens,
        num_accepted_tokens=run.num_accepted_tokens,
        differences=differences,
    )


def _sampled_judge(baseline: Baseline, plan: AgreementPlan) -> Callable[[int], Judge]:
    seeds = plan.seeds()

    def judge_of(index: int) -> Judge:
        return lambda token_ids: top_two(
            sampled_scores(baseline.logits(token_ids), len(token_ids), plan.temperature, seeds[index])
        )

    return judge_of


def sampled_scores(logits: torch.Tensor, position: int, temperature: float, seed: int) -> torch.Tensor:
    """What the sampler takes the best of: score plus noise, float32 ``[vocab]``.

    Args:
        logits: Raw scores float32 ``[vocab]``.
        position: Position of the token being chosen.
        temperature: Above 0; no other filter is on.
        seed: The request's.
    """
    rows = RowParams.build(
        temperature=np.array([temperature]),
        top_k=np.array([0]),
        top_p=np.array([1.0]),
        min_p=np.array([0.0]),
        seeds=np.array([seed]),
        positions=np.array([position]),
        device=logits.device,
    )
    ids = torch.arange(len(logits), device=logits.device)
    return (process(logits[None], rows) + gumbel(rows.seeds, rows.positions, ids))[0]


def _workload(prompts: Prompts, plan: AgreementPlan) -> dict[str, Any]:
    return {
        "num_prompts": len(prompts),
        "prompt_tokens": asdict(spread(map(len, prompts))),
        "max_tokens": plan.max_tokens,
        "concurrency": f"{len(prompts)}; transformers one by one",
        "temperature": plan.temperature,
        "seed": f"derived from {plan.seed}, one for each prompt",
    }
