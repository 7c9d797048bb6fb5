"""``paceline bench``: measurements and comparisons that can be repeated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.bench.choices import parse_batches, parse_proposers, parse_variants
from paceline.bench.rival_choices import BaselineMode, RivalChoice, parse_servers, rival_choice
from paceline.config.command_line import EXIT_FAILED, Numerics, clean_exit, key_values, parsed

if TYPE_CHECKING:
    from paceline.bench.lineup import Contest
    from paceline.bench.prompts import BenchPrompt

__all__ = ["app"]

app = typer.Typer(name="bench", help="Measure and compare engines on the same prompts.", no_args_is_help=True)

Model = Annotated[str, typer.Option("--model", "-m", help="Directory, hub id, .gguf file, or demo.")]
Proposers = Annotated[
    list[str] | None,
    typer.Option("--proposer", help='A proposer, with options: "NAME num_speculative_tokens=5 key=value". Repeatable.'),
]
Variants = Annotated[
    list[str] | None, typer.Option(help='An engine with other settings: "quantization=int8 key=value". Repeatable.')
]
LookupTokens = Annotated[int, typer.Option(min=0, help="Draft length of transformers' prompt lookup; 0 leaves it out.")]
Baselines = Annotated[
    list[BaselineMode] | None,
    typer.Option(help="Of transformers' ways, run these and plain generate; all that can run if left out."),
]
Servers = Annotated[
    list[str] | None,
    typer.Option(help='A running OpenAI-compatible server: "URL" or "URL model=NAME". Repeatable.'),
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens to emit per request.")]
PromptsFile = Annotated[
    Path | None,
    typer.Option(
        "--prompts", exists=True, dir_okay=False, help='JSON lines with "turns" and "category"; built-in if left out.'
    ),
]
NumericsOption = Annotated[Numerics, typer.Option(help="Of Paceline; exact: the same bits in any batch.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end token.")]
EngineOptions = Annotated[
    list[str] | None, typer.Option("--engine-option", help="Any other field of the engine's configuration: key=value.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", dir_okay=False, help="Write all of it as JSON.")]


@app.command("compare")
def compare_command(
    model: Model = "demo",
    proposer: Proposers = None,
    variant: Variants = None,
    batch: Annotated[str, typer.Option(help="Numbers of concurrent requests.")] = "1,4,16",
    max_tokens: MaxTokens = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Measured repetitions.")] = 5,
    warmup: Annotated[int, typer.Option(min=0, help="Short repetitions before them, not measured.")] = 1,
    prompts: PromptsFile = None,
    prompts_per_kind: Annotated[int | None, typer.Option(min=1, help="Only the first so many of each kind.")] = None,
    mixed: Annotated[bool, typer.Option("--mixed", help="All prompts as one kind, whose batches mix them.")] = False,
    lookup_tokens: LookupTokens = 5,
    baseline: Baselines = None,
    server: Servers = None,
    numerics: NumericsOption = Numerics.FAST,
    ignore_eos: IgnoreEos = False,
    engine_option: EngineOptions = None,
    output: Output = None,
) -> None:
    """Compare Paceline, without speculation and with each proposer, with transformers' generate, prompt lookup and
    continuous batching, and with running servers, in interleaved rounds.

    All is greedy, one engine at a time, each loaded once; only generating is timed. But for servers everything runs in
    this process. No KV is shared between runs. Threads: OMP_NUM_THREADS. The key of a server's API: OPENAI_API_KEY.

    Examples:

      paceline bench compare --proposer "ngram num_speculative_tokens=5" --batch 1,16 --rounds 3 -o result.json

      paceline bench compare --baseline generate --server "http://localhost:8000/v1 model=NAME"
    """
    batches = parsed("--batch", parse_batches, batch)
    rivals = _rivals(baseline, lookup_tokens, server)
    with clean_exit():
        contest = _contest(model, proposer, engine_option, numerics, ignore_eos, variant)
        _check_output(output)
        from paceline.bench.compare import PromptChoice, compare
        from paceline.bench.progress import bench_progress
        from paceline.bench.rounds import Schedule
        from paceline.bench.tables import print_comparison, report_console

        choice = PromptChoice(_prompts(prompts), prompts_per_kind, mixed)
        with bench_progress() as progress:
            result = compare(contest, rivals, choice, Schedule(batches, max_tokens, rounds, warmup), progress)
        _write(output, result.to_json())
        print_comparison(report_console(), result)


@app.command("agreement")
def agreement_command(
    model: Model = "demo",
    proposer: Proposers = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts, mixed over the kinds, all run at once.")] = 16,
    max_tokens: MaxTokens = 128,
    temperature: Annotated[float, typer.Option(min=0.01, help="Of the sampled outputs.")] = 0.8,
    seed: Annotated[int, typer.Option(min=0, help="The prompts' seeds are derived from it.")] = 0,
    near_tie: Annotated[float, typer.Option(min=0.0, help="Scores no further apart may swap places.")] = 1e-3,
    prompts: PromptsFile = None,
    numerics: NumericsOption = Numerics.FAST,
    ignore_eos: IgnoreEos = False,
    engine_option: EngineOptions = None,
    output: Output = None,
) -> None:
    """Compare outputs token for token: proposers with no speculation, greedy and sampled, and both with transformers.

    Each first difference is shown with the gap of the best two scores there. Fails if one is no near tie.

    Example:

      paceline bench agreement --proposer ngram --numerics exact --temperature 0.8 --seed 1
    """
    with clean_exit():
        contest = _contest(model, proposer, engine_option, numerics, ignore_eos)
        _check_output(output)
        from paceline.bench.agreement import AgreementPlan, agree
        from paceline.bench.progress import bench_progress
        from paceline.bench.prompts import mixed_texts
        from paceline.bench.tables import print_agreement, report_console

        texts = mixed_texts(_prompts(prompts))[:num_prompts]
        with bench_progress() as progress:
            result = agree(contest, AgreementPlan(texts, max_tokens, temperature, seed, near_tie), progress)
        _write(output, result.to_json())
        print_agreement(report_console(), result)
    if not result.is_lossless:
        raise typer.Exit(EXIT_FAILED)


@app.command("first-token")
def first_token_command(
    model: Model = "demo",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of the prompt.")] = 1024,
    rounds: Annotated[int, typer.Option(min=1, help="Measured repetitions.")] = 5,
    numerics: NumericsOption = Numerics.FAST,
    engine_option: EngineOptions = None,
    output: Output = None,
) -> None:
    """Time a long prompt to its first token: transformers, Paceline cold, and Paceline with the prompt in its cache.

    Example:

      paceline bench first-token --prompt-tokens 1024
    """
    with clean_exit():
        contest = _contest(model, None, engine_option, numerics, True)
        _check_output(output)
        from paceline.bench.first_token import first_token
        from paceline.bench.progress import bench_progress
        from paceline.bench.tables import print_first_token, report_console

        with bench_progress() as progress:
            result = first_token(contest, prompt_tokens, rounds, progress)
        _write(output, result.to_json())
        print_first_token(report_console(), result)


@app.command("step")
def step_command(
    model: Model = "demo",
    batch: Annotated[str, typer.Option(help="Numbers of requests that decode together.")] = "1,4,8,16",
    context: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 128,
    steps: Annotated[int, typer.Option(min=1, help="Steps per round.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Measured repetitions.")] = 5,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 = greedy.")] = 0.0,
    numerics: NumericsOption = Numerics.FAST,
    engine_option: EngineOptions = None,
    output: Output = None,
) -> None:
    """Time decoding steps by the number of requests, and the part of them outside the model's forward.

    On a GPU the forward's time is that of enqueueing it.

    Examples:

      paceline bench step --batch 1,4,8,16

      paceline bench step --batch 1,16 --temperature 1 --engine-option quantization=int8
    """
    with clean_exit():
        batches = parsed("--batch", parse_batches, batch)
        contest = _contest(model, None, engine_option, numerics, True)
        _check_output(output)
        from paceline.bench.progress import bench_progress
        from paceline.bench.step_cost import StepPlan, step_costs
        from paceline.bench.tables import print_step_costs, report_console

        plan = StepPlan(batches, context, steps, rounds, temperature)
        with bench_progress() as progress:
            result = step_costs(contest, plan, progress)
        _write(output, {"plan": asdict(plan), "steps": [asdict(cost) for cost in result]})
        print_step_costs(report_console(), result)


@app.command("quality")
def quality_command(
    model: Model = "demo",
    quantization: Annotated[str, typer.Option(help="What is measured.")] = "int8",
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts, mixed over the kinds.")] = 16,
    answer_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 64,
    prompts: PromptsFile = None,
    output: Output = None,
) -> None:
    """Measure what a quantisation costs: KL divergence from the weights as they are, and how greedy answers differ.

    Example:

      paceline bench quality --quantization int8
    """
    with clean_exit():
        _check_output(output)
        from paceline.bench.progress import bench_progress
        from paceline.bench.prompts import mixed_texts
        from paceline.bench.quality import quality
        from paceline.bench.tables import print_quality, report_console

        texts = mixed_texts(_prompts(prompts))[:num_prompts]
        with bench_progress() as progress:
            result = quality(model, quantization, texts, answer_tokens, progress)
        _write(output, result.to_json())
        print_quality(report_console(), result)


def _contest(
    model: str,
    proposers: Sequence[str] | None,
    engine_options: Sequence[str] | None,
    numerics: str,
    ignore_eos: bool,
    variants: Sequence[str] | None = None,
) -> Contest:
    chosen = parsed("--proposer", parse_proposers, proposers or ())
    chosen += parsed("--variant", parse_variants, variants or ())
    options = parsed("--engine-option", key_values, engine_options or ())
    from paceline.bench.lineup import Contest

    return Contest(model, chosen, options, str(numerics), ignore_eos)


def _rivals(modes: Sequence[BaselineMode] | None, lookup_tokens: int, servers: Sequence[str] | None) -> RivalChoice:
    chosen = parsed("--server", parse_servers, servers or ())
    return parsed("--baseline", lambda named: rival_choice(named, lookup_tokens, chosen), modes or ())


def _check_output(output: Path | None) -> None:
    """Before minutes of work, not after."""
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f'there is no folder "{output.parent}"', param_hint="--output")


def _prompts(file: Path | None) -> list[BenchPrompt]:
    from paceline.bench.prompts import built_in_prompts, read_prompts

    return built_in_prompts() if file is None else read_prompts(file)


def _write(output: Path | None, record: dict[str, Any]) -> None:
    if output is not None:
        output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
