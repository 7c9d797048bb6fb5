"""The reports as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from paceline.bench.agreement import Agreement, Pair
from paceline.bench.compare import Comparison
from paceline.bench.differences import Difference
from paceline.bench.first_token import FirstToken
from paceline.bench.outputs import Disagreement
from paceline.bench.quality import Quality
from paceline.bench.report import Row
from paceline.bench.stats import Spread
from paceline.bench.step_cost import StepCost

__all__ = [
    "print_agreement",
    "print_comparison",
    "print_first_token",
    "print_quality",
    "print_step_costs",
    "report_console",
    "spread_text",
]

_WIDTH_OF_FILES = 320
_DIFFERENCES_TITLE = "First differences; the gap is that of the best two scores there"
_DIFFERENCE_COLUMNS = ("position", "token", "reference's", "best two", "gap")


def report_console() -> Console:
    """Standard output; wide where it is no terminal, so that no table is folded in a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH_OF_FILES)


def _table(title: str, headers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in headers:
        table.add_column(header)
    return table


def spread_text(value: Spread | None, scale: float = 1.0, digits: int = 1) -> str:
    """``median (min-max)``, or ``-``."""
    if value is None:
        return "-"
    median, low, high = (f"{part * scale:.{digits}f}" for part in (value.median, value.min, value.max))
    return f"{median} ({low}-{high})"


def print_comparison(console: Console, comparison: Comparison) -> None:
    """One table per kind, then the first differences, then what the figures depend on."""
    for kind in dict.fromkeys(row.kind for row in comparison.rows):
        console.print(_rows_table(kind, [row for row in comparison.rows if row.kind == kind]))
    if comparison.disagreements:
        console.print(_disagreements_table(comparison.disagreements))
    else:
        console.print("All outputs are the same, token for token.")
    for line in (_conditions(comparison.environment, comparison.workload), *_rival_lines(comparison.environment)):
        console.print(line, style="dim", soft_wrap=True)


def print_first_token(console: Console, result: FirstToken) -> None:
    """Times, and what they are to one another."""
    table = _table(f"First token of {result.num_prompt_tokens} prompt tokens", ("", "ms", "x"))
    ratios = {"cold": ("transformers", result.cold_speedup), "warm": ("cold", result.warm_speedup)}
    for name, times in result.times_s.items():
        base, ratio = ratios.get(name, ("", None))
        table.add_row(name, spread_text(times, 1e3), f"{spread_text(ratio, digits=2)} {base}".strip() if ratio else "")
    console.print(table)


def print_quality(console: Console, result: Quality) -> None:
    """The figures, one per line."""
    console.print(
        f"KL divergence over {result.num_tokens} tokens: {result.mean_kl:.5f} nats, at most {result.largest_kl:.4f}"
    )
    console.print(f"same best token at {result.top1_agreement:.2%} of the positions")
    console.print(f"greedy answers share their first {result.same_greedy_tokens:.1f} of {result.answer_tokens} tokens")


def print_step_costs(console: Console, costs: Sequence[StepCost]) -> None:
    """A row for each number of requests."""
    headers = ("requests", "step ms", "in the model ms", "outside %", f"x {costs[0].batch} requests")
    table = _table("Decoding steps: median (min-max) over the rounds", headers)
    for cost in costs:
        times = (spread_text(cost.step_s, 1e3), spread_text(cost.forward_s, 1e3))
        table.add_row(str(cost.batch), *times, spread_text(cost.outside_share, 100), spread_text(cost.ratio, digits=2))
    console.print(table)


def _rows_table(kind: str, rows: Sequence[Row]) -> Table:
    smallest = min(row.batch for row in rows)
    ratios = ("x transformers", f"x transformers,\nbatch {smallest}", "x no\nspeculation")
    others = ("TTFT ms", "TPOT ms", "acceptance\nlength", "tokens/\npass")
    same = tuple("same as\n" + name for name in rows[0].agreement)
    title = f"{kind}: median (min-max) over the rounds"
    table = _table(title, ("batch", "engine", "tokens/s", *ratios, *others, *same))
    for row in rows:
        table.add_row(*_cells(row), *(f"{same}/{of}" for same, of in row.agreement.values()))
    return table


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.batch),
        row.engine,
        spread_text(row.tokens_per_s),
        spread_text(row.ratio_to_transformers, digits=2),
        spread_text(row.ratio_to_transformers_smallest_batch, digits=2),
        spread_text(row.ratio_to_no_speculation, digits=2),
        spread_text(row.ttft_s, 1000),
        spread_text(row.tpot_s, 1000),
        *("-" if value is None else f"{value:.2f}" for value in (row.acceptance_length, row.tokens_per_pass)),
    )


def _disagreements_table(found: Sequence[Disagreement]) -> Table:
    headers = ("engine", "reference", "kind", "batch", "prompt", "rounds", *_DIFFERENCE_COLUMNS)
    table = _table(_DIFFERENCES_TITLE, headers)
    for item in found:
        place = (item.cell.kind, str(item.cell.batch), str(item.prompt_index), str(item.num_rounds))
        table.add_row(item.engine, item.reference, *place, *_difference_cells(item.difference))
    return table


def _difference_cells(difference: Difference) -> tuple[str, ...]:
    """Position, token, the reference's token, the best two tokens, and the gap."""
    tokens = ("ended" if token is None else str(token) for token in (difference.token, difference.reference_token))
    best = ", ".join(map(str, difference.best.token_ids))
    return (str(difference.position), *tokens, best, f"{difference.best.gap:.2e}")


def print_agreement(console: Console, agreement: Agreement) -> None:
    """A table of the comparisons, then the first differences."""
    headers = ("compared", "with", "sampling", "same outputs", "tokens", "drafted", "accepted")
    table = _table("Outputs, token for token", headers)
    for pair in agreement.pairs:
        counts = (pair.num_tokens, pair.num_draft_tokens, pair.num_accepted_tokens)
        same = f"{pair.num_same}/{pair.num_outputs}"
        table.add_row(pair.name, pair.reference, pair.sampling, same, *map(str, counts))
    console.print(table)
    differing = [pair for pair in agreement.pairs if pair.differences]
    if differing:
        console.print(_pairs_table(differing))
        verdict = "at near ties only" if agreement.is_lossless else "NOT ONLY AT NEAR TIES"
        console.print(f"Outputs differ {verdict} (gap at most {agreement.near_tie:g}).")
    else:
        console.print("All outputs are the same, token for token.")


def _pairs_table(pairs: Sequence[Pair]) -> Table:
    table = _table(_DIFFERENCES_TITLE, ("compared", "with", "sampling", "prompt", *_DIFFERENCE_COLUMNS))
    for pair in pairs:
        for index, difference in pair.differences.items():
            table.add_row(pair.name, pair.reference, pair.sampling, str(index), *_difference_cells(difference))
    return table


def _conditions(environment: dict[str, Any], workload: dict[str, Any]) -> str:
    model, hardware, versions = environment["model"], environment["hardware"], environment["versions"]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{model['name']} ({model['weights_fingerprint'][:12]}), {model['dtype']} on {model['device']}, numerics "
        f"{environment['numerics']}; transformers' attention: {environment['transformers']['attention']}; {listed}; "
        f"{hardware['cpu']}, {hardware['num_cpus']} cores, {environment['threads']['torch']} threads, load average "
        f"{environment['load_average_at_start'][0]} to {environment['load_average_at_end'][0]}; "
        f"{workload['num_rounds']} rounds, {workload['order']}; warm-up: {workload['warm_up']}; at most "
        f"{workload['max_tokens']} tokens, {workload['sampling']}; prefix sharing: {environment['prefix_sharing']}; "
        f"{workload['wall_time_s']} s in all"
    )


def _rival_lines(environment: dict[str, Any]) -> list[str]:
    """What stands in for a row that is not there, and what is not known of servers."""
    left_out = (environment["transformers"]["continuous_batching"] or {}).get("left_out")
    lines = [] if left_out is None else [f"left out: transformers continuous batching ({left_out})"]
    for name, facts in environment["servers"].items():
        known = f"outputs compared by {facts['outputs_compared_by']}; prefix sharing: {facts['prefix_sharing']}"
        lines.append(f"{name} at {facts['url']}: {known}; not controlled: {facts['not_controlled']}")
    return lines
