"""``paceline config``: what is in force, and what can be said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.config.command_line import clean_exit, key_values, parsed
from paceline.host.commands import PolicyFile, print_table
from paceline.host.policy_file import policy_in_force

if TYPE_CHECKING:  # these bring pydantic and YAML, which most commands can do without: they are imported where needed
    from paceline.config.layer import Origin
    from paceline.config.sources import Resolved

__all__ = ["ConfigFile", "EngineOptions", "app"]

app = typer.Typer(
    name="config", help="Show the configuration in force and what can be configured.", no_args_is_help=True
)

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", help="Configuration file; else PACELINE_CONFIG, else paceline.yaml in the working directory."
    ),
]

EngineOptions = Annotated[
    list[str] | None,
    typer.Option("--engine-option", help="Any field of the engine's configuration: key=value; may be repeated."),
]

_FROM_CHECKPOINT = ("tokenizer", "dtype", "max_model_len")  # where nothing is given


@app.command("show")
def show_command(
    config: ConfigFile = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Directory, hub id, .gguf file, or demo.")] = None,
    engine_option: EngineOptions = None,
    plugin_policy: PolicyFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print every field in force and where it came from: command line, environment, file and line, or default."""
    from paceline.config.sources import resolve

    own = {"model": model, "plugin_policy": plugin_policy}
    given = parsed("--engine-option", key_values, engine_option or [])
    with clean_exit():
        found = resolve(given | {name: value for name, value in own.items() if value is not None}, config)
        rows = _rows(found)
    if as_json:
        typer.echo(
            json.dumps({"file": None if found.file is None else str(found.file), "fields": _fields(rows)}, indent=2)
        )
    else:
        _print_table(rows)


@app.command("schema")
def schema_command() -> None:
    """Print the JSON schema of paceline.yaml."""
    from paceline.config.layout import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@app.command("arguments")
def arguments_command() -> None:
    """Print what becomes of each engine argument of vLLM, as Markdown."""
    from paceline.config.page import as_markdown

    typer.echo(as_markdown(), nl=False)


def _rows(found: Resolved) -> list[tuple[str, Any, Origin]]:
    """Every field, and the mode of the plugin policy in force."""
    from paceline.config.layer import DEFAULT, Origin, Source

    policy = policy_in_force(found.config.plugin_policy)
    origin = DEFAULT if policy.file is None else Origin(Source.FILE, str(policy.file))
    return [*found.rows(), ("plugin_policy.mode", policy.mode, origin)]


def _fields(rows: Sequence[tuple[str, Any, Origin]]) -> dict[str, Any]:
    return {
        name: {"value": value, "source": str(origin.source), "place": origin.place or None}
        for name, value, origin in rows
    }


def _print_table(rows: Sequence[tuple[str, Any, Origin]]) -> None:
    lines = [("FIELD", "VALUE", "FROM")]
    for name, value, origin in rows:
        of_checkpoint = origin.source == "default" and name in _FROM_CHECKPOINT
        lines.append((name, json.dumps(value), f"{origin} (the checkpoint's)" if of_checkpoint else str(origin)))
    print_table(lines)
