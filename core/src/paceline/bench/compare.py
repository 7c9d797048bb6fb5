"""``paceline bench compare``: transformers and Paceline over the same prompts, in interleaved rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from paceline.bench.differences import TopTwo, top_two
from paceline.bench.engines import BenchEngine
from paceline.bench.environment import environment, load_average
from paceline.bench.lineup import NO_SPECULATION, Baseline, Contest, PacelineEngines, load_baseline
from paceline.bench.outputs import Disagreement, disagreements, reference, same_counts
from paceline.bench.plan import Turn
from paceline.bench.progress import BenchProgress
from paceline.bench.prompts import BenchPrompt, by_kind
from paceline.bench.records import Measurement
from paceline.bench.report import RatioBases, Row, measurement_fields, report_rows, with_totals
from paceline.bench.rival_choices import RivalChoice
from paceline.bench.rivals import load_rivals
from paceline.bench.rounds import WARM_UP_TOKENS, Groups, Schedule, measure, num_turns, warm_up
from paceline.bench.server import connected
from paceline.bench.stats import spread

__all__ = ["Comparison", "PromptChoice", "compare", "greedy_judge"]


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """Which prompts are run.

    Attributes:
        prompts: All there are.
        most_per_kind: Take only the first so many of each kind; ``None`` = all.
        mixed: Report all as one kind.
    """

    prompts: Sequence[BenchPrompt]
    most_per_kind: int | None
    mixed: bool


@dataclass(slots=True)
class Comparison:
    """The result.

    Attributes:
        rows: One per engine and cell.
        disagreements: Every distinct first difference, to transformers and to no speculation.
        measurements: What the rows are made from.
        environment: All that the figures depend on.
        workload: Prompts, lengths, repetitions, sampling.
    """

    rows: list[Row]
    disagreements: list[Disagreement]
    measurements: list[Measurement]
    environment: dict[str, Any]
    workload: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "environment": self.environment,
            "workload": self.workload,
            "rows": [asdict(row) for row in self.rows],
            "disagreements": [asdict(found) for found in self.disagreements],
            "measurements": [measurement_fields(measurement) for measurement in self.measurements],
        }


def compare(
    contest: Contest, rival_choice: RivalChoice, choice: PromptChoice, schedule: Schedule, progress: BenchProgress
) -> Comparison:
    """Load everything once, warm up, measure, and compare the outputs.

    Args:
        contest: Model and Paceline's engines.
        rival_choice: What they are compared with, beside transformers' ``generate``.
        choice: Prompts.
        schedule: How often and how much.
        progress: Is told what goes on.

    Raises:
        PacelineError: from whatever refuses, or if a request fails.
    """
    started_s = time.perf_counter()
    with ExitStack() as stack:
        progress.show("asking servers")
        servers = [stack.enter_context(connected(server)) for server in rival_choice.servers]
        progress.show("loading transformers")
        baseline = load_baseline(contest)
        groups = by_kind(choice.prompts, baseline.encode, most_per_kind=choice.most_per_kind, mixed=choice.mixed)
        longest = schedule.max_tokens + max(len(ids) for group in groups.values() for ids in group)
        size = {"longest": longest, "max_batch": max(schedule.batches)}
        rivals = stack.enter_context(closing(load_rivals(contest, rival_choice, baseline, servers, **size)))
        loading = PacelineEngines(contest, **size, on_load=lambda name: progress.show(f"loading {name}"))
        engines = stack.enter_context(loading)
        facts = environment(contest, baseline, engines)
        measurements = _measurements(rivals.around(engines), groups, schedule, progress)
        facts["transformers"]["prompt_lookup_num_tokens"] = rival_choice.lookup_tokens
        facts["transformers"]["continuous_batching"] = rivals.batching_facts()
        facts |= {"servers": rivals.server_facts(), "load_average_at_end": load_average()}
    progress.show("comparing outputs")
    rows, found = _judged(measurements, groups, schedule, baseline)
    workload = _workload(groups, schedule, choice, time.perf_counter() - started_s)
    return Comparison(rows, found, measurements, facts, workload)


def _measurements(
    engines: Sequence[BenchEngine], groups: Groups, schedule: Schedule, progress: BenchProgress
) -> list[Measurement]:
    progress.start(num_turns(engines, groups, schedule))
    warm_up(engines, groups, schedule, lambda turn: progress.turn(f"warm-up: {_describe(turn)}"))
    return measure(engines, groups, schedule, lambda turn: progress.turn(_describe(turn)))


def _describe(turn: Turn) -> str:
    return f"round {turn.round_index + 1}, {turn.cell.kind}, batch {turn.cell.batch}, {turn.engine}"


def greedy_judge(baseline: Baseline) -> Callable[[Sequence[int]], TopTwo]:
    """The best two tokens after some tokens, by transformers' plain forward; each asked for once."""

    @cache
    def best(token_ids: tuple[int, ...]) -> TopTwo:
        return top_two(baseline.logits(token_ids))

    return lambda token_ids: best(tuple(token_ids))


def _judged(
    measurements: Sequence[Measurement], groups: Groups, schedule: Schedule, baseline: Baseline
) -> tuple[list[Row], list[Disagreement]]:
    smallest, best_after = min(schedule.batches), greedy_judge(baseline)
    references = [
        reference(measurements, groups, engine, batch=batch, retokenize=baseline.retokenize)
        for engine, batch in (("transformers", smallest), (NO_SPECULATION, None))
    ]
    agreement = {expected.name: same_counts(measurements, groups, expected) for expected in references}
    found = [item for expected in references for item in disagreements(measurements, groups, expected, best_after)]
    bases = RatioBases("transformers", NO_SPECULATION, smallest)
    return report_rows(with_totals(measurements), bases, agreement), found


def _workload(groups: Groups, schedule: Schedule, choice: PromptChoice, seconds: float) -> dict[str, Any]:
    kinds = {
        kind: {"num_prompts": len(group), "prompt_tokens": asdict(spread(map(len, group)))}
        for kind, group in groups.items()
    }
    return {
        "kinds": kinds,
        "mixed": choice.mixed,
        "concurrency": list(schedule.batches),
        "filling": "prompts of a kind are repeated until they fill whole batches; a batch starts when the last ended",
        "max_tokens": schedule.max_tokens,
        "sampling": "greedy",
        "num_rounds": schedule.num_rounds,
        "order": "interleaved: in each round and cell the engines follow one another",
        "warm_up": f"{schedule.num_warmup} rounds of up to {WARM_UP_TOKENS} tokens per request",
        "wall_time_s": round(seconds, 1),
    }
