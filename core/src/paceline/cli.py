"""The command line: ``paceline generate | demo | plugins | config | bench``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer

from paceline import __version__
from paceline.api.errors import PacelineError
from paceline.api.version import API_VERSION
from paceline.bench.commands import app as bench_app
from paceline.config.commands import ConfigFile
from paceline.config.commands import app as config_app
from paceline.config.sources import resolve
from paceline.host.commands import app as plugins_app

__all__ = ["app"]

app = typer.Typer(
    name="paceline",
    help="LLM inference with speculation and cache policies as plugins.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(plugins_app)
app.add_typer(config_app)
app.add_typer(bench_app)

P = ParamSpec("P")
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
_OWN_OPTIONS = ("model", "numerics", "num_speculative_tokens", "proposer", "proposer_options")


class Numerics(StrEnum):
    """Whether results may differ in the last bit with the batch."""

    FAST = "fast"
    EXACT = "exact"


def _clean_exit(command: Callable[P, None]) -> Callable[P, None]:
    """Errors of the user's end as one line on stderr, Ctrl-C without a traceback."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except PacelineError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(EXIT_FAILED) from error
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None

    return run


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paceline {__version__} (paceline.api {API_VERSION})")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before a command."""


def _key_values(pairs: list[str]) -> dict[str, Any]:
    """``key=value`` pairs; a value is read as JSON where it is JSON, else as text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator:
            raise typer.BadParameter(f'"{pair}" is not of the form key=value')
        try:
            values[key] = json.loads(text)
        except json.JSONDecodeError:
            values[key] = text
    return values


def _read_prompts(prompts: list[str], file: Path | None) -> list[str]:
    """Prompts from the arguments, then one per line of the file; ``-`` is standard input, whole."""
    read = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts]
    if file is not None:
        read += [line for line in _text_of(file).splitlines() if line.strip()]
    if not read:
        raise typer.BadParameter("give a prompt, - for standard input, or --prompts FILE")
    return read


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f'"{file}" is not UTF-8 text ({error.reason} at byte {error.start})') from error


def _engine_options(pairs: list[str]) -> dict[str, Any]:
    values = _key_values(pairs)
    for name in _OWN_OPTIONS:
        if name in values:
            own = name.removesuffix("s") if name == "proposer_options" else name
            raise typer.BadParameter(f'"{name}" has an option of its own: --{own.replace("_", "-")}')
    return values


@app.command()
@_clean_exit
def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts; - reads standard input.")] = None,
    config: ConfigFile = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Directory, hub id, .gguf file, or demo, which is the default.")
    ] = None,
    prompts_file: Annotated[
        Path | None, typer.Option("--prompts", exists=True, dir_okay=False, help="File with one prompt per line.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the model's chat template.")] = False,
    proposer: Annotated[str | None, typer.Option(help="Proposer plugin, such as ngram; none if left out.")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option(help="Most draft tokens per step.")] = None,
    proposer_option: Annotated[
        list[str] | None, typer.Option(help="Option of the proposer: key=value; may be repeated.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to emit.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="1 is off.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 is off.")] = 0,
    min_p: Annotated[float, typer.Option(help="0 is off.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    numerics: Annotated[Numerics | None, typer.Option(help="exact: the same bits in any batch.")] = None,
    engine_option: Annotated[
        list[str] | None,
        typer.Option(help="Any other field of the engine's configuration: key=value; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt.")] = False,
) -> None:
    """Generate text.

    Examples:

      paceline generate "The capital of France is"

      paceline generate --chat --proposer ngram --num-speculative-tokens 5 "Rename x to y in: x = x + 1"

      paceline generate -m ./my-model --temperature 0.8 --seed 1 --engine-option max_model_len=2048 - < prompt.txt
    """
    texts = _read_prompts(prompts or [], prompts_file)
    given = {
        "model": model,
        "numerics": numerics and str(numerics),
        "proposer": proposer,
        "proposer_options": _key_values(proposer_option or []) or None,
        "num_speculative_tokens": num_speculative_tokens,
    }
    options = _engine_options(engine_option or []) | {name: value for name, value in given.items() if value is not None}
    settings = resolve(options, config)
    from paceline import LLM, SamplingParams  # torch comes with it: seconds that a wrong option must not cost
    from paceline.engine.chat import chat_prompt

    params = SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, max_tokens=max_tokens
    )
    with LLM.from_config(settings.config) as llm:
        outputs = llm.generate([chat_prompt(llm.get_tokenizer(), text) for text in texts] if chat else texts, params)
    for text, output in zip(texts, outputs, strict=True):
        _print_output(text, output, as_json, alone=len(texts) == 1)
    if any(output.error for output in outputs):
        raise typer.Exit(EXIT_FAILED)


def _print_output(text: str, output: Any, as_json: bool, alone: bool) -> None:
    completion = output.outputs[0]
    if as_json:
        record = {"prompt": text, "text": completion.text, "token_ids": completion.token_ids}
        typer.echo(
            json.dumps(record | {"finish_reason": completion.finish_reason, "metrics": output.metrics.as_dict()})
        )
    elif alone:
        typer.echo(completion.text)
    else:
        typer.echo(f"> {text}\n{completion.text}\n")
    if output.error:
        typer.echo(output.error, err=True)


@app.command()
@_clean_exit
def demo(
    max_tokens: Annotated[int, typer.Option(help="Most tokens to emit per prompt.", min=1)] = 96,
    numerics: Annotated[Numerics, typer.Option(help="fast may differ at near ties.")] = Numerics.EXACT,
) -> None:
    """Generate with SmolLM2-135M-Instruct without speculation, with n-grams and with a draft model, and compare."""
    from paceline.demo import run_demo

    if not run_demo(max_tokens=max_tokens, numerics=str(numerics)):
        raise typer.Exit(EXIT_FAILED)


if __name__ == "__main__":
    app()
