"""``paceline config``: what is in force, and what can be said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.config.command_line import clean_exit, key_values, parsed
from paceline.config.layer import Source
from paceline.config.layout import json_schema
from paceline.config.page import as_markdown
from paceline.config.sources import Resolved, resolve

__all__ = ["ConfigFile", "app"]

app = typer.Typer(
    name="config", help="Show the configuration in force and what can be configured.", no_args_is_help=True
)

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", help="Configuration file; else PACELINE_CONFIG, else paceline.yaml in the working directory."
    ),
]

_FROM_CHECKPOINT = ("tokenizer", "dtype", "max_model_len")  # where nothing is given


@app.command("show")
def show_command(
    config: ConfigFile = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Directory, hub id, .gguf file, or demo.")] = None,
    engine_option: Annotated[
        list[str] | None, typer.Option(help="Any field of the engine's configuration: key=value; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print every field in force and where it came from: command line, environment, file and line, or default."""
    given = parsed("--engine-option", key_values, engine_option or []) | ({} if model is None else {"model": model})
    with clean_exit():
        resolved = resolve(given, config)
    if as_json:
        typer.echo(json.dumps(_record(resolved), indent=2))
    else:
        _print_table(resolved)


@app.command("schema")
def schema_command() -> None:
    """Print the JSON schema of paceline.yaml."""
    typer.echo(json.dumps(json_schema(), indent=2))


@app.command("arguments")
def arguments_command() -> None:
    """Print what becomes of each engine argument of vLLM, as Markdown."""
    typer.echo(as_markdown(), nl=False)


def _record(resolved: Resolved) -> dict[str, Any]:
    fields = {
        name: {"value": value, "source": str(origin.source), "place": origin.place or None}
        for name, value, origin in resolved.rows()
    }
    return {"file": None if resolved.file is None else str(resolved.file), "fields": fields}


def _print_table(resolved: Resolved) -> None:
    lines = [("FIELD", "VALUE", "FROM")]
    for name, value, origin in resolved.rows():
        of_checkpoint = origin.source is Source.DEFAULT and name in _FROM_CHECKPOINT
        lines.append((name, json.dumps(value), f"{origin} (the checkpoint's)" if of_checkpoint else str(origin)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
