"""The command line: ``paceline generate | chat | train | demo | plugins | config | bench``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline import __version__
from paceline.bench.commands import app as bench_app
from paceline.config.command_line import EXIT_FAILED, Numerics, clean_exit, key_values, parsed
from paceline.config.commands import ConfigFile
from paceline.config.commands import app as config_app
from paceline.host.commands import PolicyFile
from paceline.testing.commands import app as plugins_app

if TYPE_CHECKING:
    from paceline import LLM
    from paceline.config import EngineConfig

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

_OWN_OPTIONS = ("model", "numerics", "num_speculative_tokens", "plugin_policy", "proposer", "proposer_options")


def _print_version(wanted: bool) -> None:
    if wanted:
        from paceline.api.version import API_VERSION

        typer.echo(f"paceline {__version__} (paceline.api {API_VERSION})")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before a command."""


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
    except OSError as error:
        raise typer.BadParameter(f'"{file}" cannot be read: {error.strerror}') from error
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f'"{file}" is not UTF-8 text ({error.reason} at byte {error.start})') from error


def _engine_options(pairs: list[str]) -> dict[str, Any]:
    values = parsed("--engine-option", key_values, pairs)
    for name in _OWN_OPTIONS:
        if name in values:
            own = name.removesuffix("s") if name == "proposer_options" else name
            raise typer.BadParameter(f'"{name}" has an option of its own: --{own.replace("_", "-")}')
    return values


Model = Annotated[
    str | None, typer.Option("--model", "-m", help="Directory, hub id, .gguf file, or demo, which is the default.")
]
ProposerName = Annotated[str | None, typer.Option(help="Proposer plugin, such as ngram; none if left out.")]
DraftLength = Annotated[int | None, typer.Option(help="Most draft tokens per step.")]
ProposerOptions = Annotated[list[str] | None, typer.Option(help="Option of the proposer: key=value; may be repeated.")]
EngineOptions = Annotated[
    list[str] | None, typer.Option(help="Any other field of the engine's configuration: key=value; may be repeated.")
]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]


def _given(
    model: str | None,
    proposer: str | None,
    num_speculative_tokens: int | None,
    proposer_option: list[str] | None,
    engine_option: list[str] | None,
    plugin_policy: str | None,
    numerics: Numerics | None = None,
) -> dict[str, Any]:
    """What the command line says of the engine; what it leaves out comes from elsewhere."""
    given = {
        "model": model,
        "numerics": numerics and str(numerics),
        "proposer": proposer,
        "proposer_options": parsed("--proposer-option", key_values, proposer_option or []) or None,
        "num_speculative_tokens": num_speculative_tokens,
        "plugin_policy": plugin_policy,
    }
    return _engine_options(engine_option or []) | {name: value for name, value in given.items() if value is not None}


@app.command()
@clean_exit()
def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts; - reads standard input.")] = None,
    config: ConfigFile = None,
    model: Model = None,
    prompts_file: Annotated[
        Path | None, typer.Option("--prompts", exists=True, dir_okay=False, help="File with one prompt per line.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the model's chat template.")] = False,
    proposer: ProposerName = None,
    num_speculative_tokens: DraftLength = None,
    proposer_option: ProposerOptions = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to emit.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="1 is off.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 is off.")] = 0,
    min_p: Annotated[float, typer.Option(help="0 is off.")] = 0.0,
    seed: Seed = None,
    constraint: Annotated[
        list[str] | None, typer.Option(help="Constraint plugin, such as llguidance; may be repeated.")
    ] = None,
    structured_output: Annotated[
        list[str] | None,
        typer.Option(help="Form of the output: json, regex, choice, grammar or json_object =value; @FILE reads it."),
    ] = None,
    numerics: Annotated[Numerics | None, typer.Option(help="exact: the same bits in any batch.")] = None,
    plugin_policy: PolicyFile = None,
    engine_option: EngineOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt.")] = False,
) -> None:
    """Generate text.

    Examples:

      paceline generate "The capital of France is"

      paceline generate --chat --proposer ngram --num-speculative-tokens 5 "Rename x to y in: x = x + 1"

      paceline generate --constraint llguidance --structured-output regex='yes|no' "Is the sky blue?"

      paceline generate -m ./my-model --temperature 0.8 --seed 1 --engine-option max_model_len=2048 - < prompt.txt
    """
    texts = _read_prompts(prompts or [], prompts_file)
    from paceline.config.sources import resolve

    given = _given(model, proposer, num_speculative_tokens, proposer_option, engine_option, plugin_policy, numerics)
    settings = resolve(given | ({"constraints": constraint} if constraint else {}), config)
    form = parsed("--structured-output", _form, structured_output or [])
    from paceline import LLM, SamplingParams  # torch comes with it: seconds that a wrong option must not cost
    from paceline.engine.chat import chat_prompt

    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        max_tokens=max_tokens,
        structured_outputs=form,
    )
    with LLM.from_config(settings.config) as llm:
        _say_policy(settings.config, llm)
        outputs = llm.generate([chat_prompt(llm.get_tokenizer(), text) for text in texts] if chat else texts, params)
    for text, output in zip(texts, outputs, strict=True):
        _print_output(text, output, as_json, alone=len(texts) == 1)
    if any(output.error for output in outputs):
        raise typer.Exit(EXIT_FAILED)


def _say_policy(config: EngineConfig, llm: LLM) -> None:
    """Where a policy is given, who starts the engine sees which one and what it let run."""
    if config.plugin_policy is not None:
        typer.echo(llm.built.start_line, err=True)


def _form(pairs: list[str]) -> dict[str, Any] | None:
    """What ``--structured-output`` asks: patterns and grammars are text as they stand, ``@FILE`` is a file's text."""
    values = key_values(pairs)
    for name, _, text in (pair.partition("=") for pair in pairs):
        if text.startswith("@"):
            values[name] = _text_of(Path(text[1:]))
        elif name in ("regex", "grammar"):
            values[name] = text
    return values or None


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
@clean_exit()
def chat(
    config: ConfigFile = None,
    model: Model = None,
    proposer: ProposerName = None,
    num_speculative_tokens: DraftLength = None,
    proposer_option: ProposerOptions = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 512,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy; the checkpoint's own if left out.")] = None,
    seed: Seed = None,
    plugin_policy: PolicyFile = None,
    engine_option: EngineOptions = None,
) -> None:
    """Talk to a model. Answers stream; /stats, /reset and /exit are commands, Ctrl-C stops an answer.

    Example:

      paceline chat --proposer ngram --temperature 0
    """
    from paceline.config.sources import resolve

    given = _given(model, proposer, num_speculative_tokens, proposer_option, engine_option, plugin_policy)
    settings = resolve(given, config)
    from paceline import LLM, SamplingParams
    from paceline.chat import run_chat

    own = {"max_tokens": max_tokens, "seed": seed, "temperature": temperature}
    with LLM.from_config(settings.config) as llm:
        _say_policy(settings.config, llm)
        defaults = llm.get_default_sampling_params().model_dump()
        run_chat(llm, SamplingParams(**defaults | {name: value for name, value in own.items() if value is not None}))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)
@clean_exit()
def train(
    context: typer.Context,
    plugin: Annotated[str, typer.Argument(help="Plugin whose proposer is trained, such as eagle.")],
) -> None:
    """Train a proposer for a model, with the command of the plugin that brings it.

    Examples:

      paceline train eagle --help

      paceline train eagle --target demo --output ./head
    """
    from paceline.plugin_command import run_plugin_command

    run_plugin_command("train", plugin, context.args)


@app.command()
@clean_exit()
def demo(
    max_tokens: Annotated[int, typer.Option(help="Most tokens to emit per prompt.", min=1)] = 96,
    numerics: Annotated[Numerics, typer.Option(help="fast may differ at near ties.")] = Numerics.EXACT,
) -> None:
    """Generate with SmolLM2-135M-Instruct without speculation, with n-grams, EAGLE and a draft model, and compare."""
    from paceline.demo import run_demo

    if not run_demo(max_tokens=max_tokens, numerics=str(numerics)):
        raise typer.Exit(EXIT_FAILED)


if __name__ == "__main__":
    app()
