"""``paceline plugins``: what is installed, and whether it can run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from paceline.api.errors import PacelineError
from paceline.host.discovery import discover
from paceline.host.report import Row, list_rows, show
from paceline.host.selection import Address

__all__ = ["app"]

app = typer.Typer(name="plugins", help="Show the installed plugins.", no_args_is_help=True)

_HEADER = ("NAME", "DISTRIBUTION", "VERSION", "API RANGE", "HOOKS", "STATE", "WHY")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_command(
    load: Annotated[list[str] | None, typer.Option("--load", help="Import this plugin and check it.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the installed plugins in the order of their names. None is imported unless --load names it."""
    try:
        rows = list_rows(discover(), load or ())
    except PacelineError as error:
        raise _failure(error) from error
    if as_json:
        _print_json([asdict(row) for row in rows])
    else:
        _print_rows(rows)
    named = {Address.parse(name).entry_point for name in load or ()}
    if any(row.name in named and row.state != "ready" for row in rows):
        raise typer.Exit(1)


@app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="Name of the plugin.")],
    as_json: AsJson = False,
) -> None:
    """Import one plugin, check it and show what it declares."""
    try:
        row, specs = show(discover(), name)
    except PacelineError as error:
        raise _failure(error) from error
    if as_json:
        _print_json({**asdict(row), "specs": specs})
    else:
        _print_rows([row])
        for spec in specs:
            _print_spec(spec)
    if row.state != "ready":
        raise typer.Exit(1)


def _failure(error: PacelineError) -> typer.Exit:
    typer.echo(str(error), err=True)
    return typer.Exit(1)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))


def _print_rows(rows: Sequence[Row]) -> None:
    lines = [_HEADER, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cells(row: Row) -> tuple[str, ...]:
    hooks = "?" if row.hooks is None else ", ".join(row.hooks)
    return (row.name or "-", row.distribution, row.version, row.api_range or "?", hooks, row.state, row.why)


def _print_spec(spec: dict[str, Any]) -> None:
    typer.echo(f"\n{spec['kind']} {spec['name']}: {spec['summary']}")
    typer.echo(f"  paceline.api {spec['requires_api']}, needs: {', '.join(spec['needs']) or 'nothing'}")
    for option, schema in spec["options"].get("properties", {}).items():
        default = f" = {schema['default']!r}" if "default" in schema else ""
        typer.echo(f"  {option}{default}  {schema.get('description', '')}".rstrip())
