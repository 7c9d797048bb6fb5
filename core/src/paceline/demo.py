"""The demo: one model, four ways to run it, the same tokens each time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.engine.chat import chat_prompt
from paceline.engine.llm import LLM
from paceline.engine.outputs import RequestOutput
from paceline.sampling.params import SamplingParams

__all__ = ["run_demo"]

_PROMPTS = (
    "Why is the sky blue? Answer in two sentences.",
    "A baker sells 12 rolls in the morning and twice as many in the afternoon. How many rolls does she sell in all?",
    "Summarize in two sentences: The bicycle is a human-powered vehicle with two wheels attached to a frame, one "
    "behind the other. Bicycles were introduced in the 19th century in Europe. By the early 21st century, more than "
    "one billion were in existence. Bicycles are the principal means of transport in many regions, and they are a "
    "popular form of recreation.",
)
_WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("no speculation", {}),
    ("n-gram", {"proposer": "ngram", "num_speculative_tokens": 5}),
    ("EAGLE head", {"proposer": "eagle", "num_speculative_tokens": 2, "proposer_options": {"model": "demo"}}),
    (
        "draft model",
        {"proposer": "draft_model", "num_speculative_tokens": 3, "proposer_options": {"model": "target"}},
    ),
)


@dataclass(slots=True)
class _Run:
    """One way and what it took."""

    name: str
    outputs: list[RequestOutput]
    seconds: float
    num_steps: int
    draft_time_s: float
    verify_time_s: float

    @property
    def tokens(self) -> list[list[int]]:
        return [output.outputs[0].token_ids for output in self.outputs]

    def sum(self, name: str) -> int:
        return sum(getattr(output.metrics, name) for output in self.outputs)


def run_demo(*, max_tokens: int, numerics: str) -> bool:
    """Print the texts and a table of costs; return whether all ways emitted the same tokens."""
    console = Console()
    runs = [_run(console, name, options, max_tokens, numerics) for name, options in _WAYS]
    for prompt, output in zip(_PROMPTS, runs[0].outputs, strict=True):
        console.print(f"[bold]> {escape(prompt)}[/bold]\n{escape(output.outputs[0].text)}\n", highlight=False)
    console.print(_table(runs))
    same = all(run.tokens == runs[0].tokens for run in runs)
    console.print(f"All {len(runs)} emitted {'the same tokens' if same else 'DIFFERENT tokens'} ({numerics} numerics).")
    console.print(
        "The EAGLE head was trained on school mathematics, and drafts well there. The draft model is the target "
        "itself: all that it drafts is accepted, and each draft token costs a pass of the target; one that pays is a "
        "fraction of its size.",
        style="dim",
    )
    return same


def _run(console: Console, name: str, options: dict[str, Any], max_tokens: int, numerics: str) -> _Run:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    with console.status(f"{name}: loading SmolLM2-135M-Instruct"):
        llm = LLM("demo", numerics=numerics, max_model_len=1024, max_num_seqs=4, **options)
    with llm:
        prompts = [chat_prompt(llm.get_tokenizer(), prompt) for prompt in _PROMPTS]
        llm.generate("warm up", SamplingParams(temperature=0.0, max_tokens=2), use_tqdm=False)
        before = llm.engine.stats.snapshot()
        started_s = time.perf_counter()
        outputs = llm.generate(prompts, params)
        seconds = time.perf_counter() - started_s
        stats = llm.engine.stats
    return _Run(
        name,
        outputs,
        seconds,
        stats.num_steps - before.num_steps,
        stats.draft_time_s - before.draft_time_s,
        stats.verify_time_s - before.verify_time_s,
    )


def _table(runs: list[_Run]) -> Table:
    """Tokens per second; passes of the target; draft tokens; mean acceptance length; time drafting and verifying."""
    headers = ("", "tokens/s", "passes", "drafted", "accepted", "length", "draft s", "verify s")
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    for header in headers:
        table.add_column(header, no_wrap=True, justify="right" if header else "left")
    for run in runs:
        num_drafts = run.sum("num_drafts")
        length = f"{1 + run.sum('num_accepted_tokens') / num_drafts:.2f}" if num_drafts else "-"
        table.add_row(
            run.name,
            f"{run.sum('num_generated_tokens') / run.seconds:.1f}",
            str(run.num_steps),
            str(run.sum("num_draft_tokens")),
            str(run.sum("num_accepted_tokens")),
            length,
            f"{run.draft_time_s:.2f}",
            f"{run.verify_time_s:.2f}",
        )
    return table
