"""``paceline plugins``: what is installed, what may run and why; ``paceline.config.plugin_commands`` adds ``lock``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from paceline.api.errors import PacelineError
from paceline.host.discovery import discover
from paceline.host.lock_file import read_lock
from paceline.host.policy_file import policy_in_force
from paceline.host.report import Reason, Row, list_rows, reason, show, verify
from paceline.host.selection import Address

__all__ = ["AsJson", "PolicyFile", "app", "clean_failure", "print_json", "print_table"]

app = typer.Typer(name="plugins", help="Show the installed plugins, and which may run.", no_args_is_help=True)

_HEADER = ("NAME", "DISTRIBUTION", "VERSION", "API RANGE", "HOOKS", "STATE", "WHY")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PluginName = Annotated[
    str, typer.Argument(help="Name of the plugin, with DISTRIBUTION/ before it where several have it.")
]
PolicyFile = Annotated[
    str | None,
    typer.Option(
        "--plugin-policy",
        metavar="FILE",
        help="Plugin policy; else PACELINE_PLUGIN_POLICY, else paceline-plugins.toml in the working directory.",
    ),
]


@app.command("list")
def list_command(
    load: Annotated[list[str] | None, typer.Option("--load", help="Import this plugin and check it.")] = None,
    plugin_policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """List the installed plugins in the order of their names. None is imported unless --load names it."""
    with clean_failure():
        policy = policy_in_force(plugin_policy)
        rows = list_rows(discover(), load or (), policy)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        _print_rows(rows)
        typer.echo(f"\nPlugin policy: {policy}")
    named = {Address.parse(name).entry_point for name in load or ()}
    if any(row.name in named and row.state != "ready" for row in rows):
        raise typer.Exit(1)


@app.command("show")
def show_command(
    name: PluginName,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schemas of its options alone.")] = False,
    plugin_policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Import one plugin, if the policy lets it run, check it and show what it declares."""
    with clean_failure():
        row, specs = show(discover(), name, policy_in_force(plugin_policy))
    if schema and row.state == "ready":
        print_json({f"{spec['kind']} {spec['name']}": spec["options"] for spec in specs})
    elif as_json:
        print_json({**asdict(row), "specs": specs})
    else:
        _print_rows([row])
        for spec in specs:
            _print_spec(spec)
    if row.state != "ready":
        raise typer.Exit(1)


@app.command("why")
def why_command(name: PluginName, plugin_policy: PolicyFile = None, as_json: AsJson = False) -> None:
    """Say which rule of which file lets a plugin run, or refuses it. Nothing is imported."""
    with clean_failure():
        found = reason(discover(), name, policy_in_force(plugin_policy))
    if as_json:
        print_json(asdict(found))
    else:
        _print_reason(found)
    if not found.permitted:
        raise typer.Exit(1)


@app.command("verify")
def verify_command(plugin_policy: PolicyFile = None, as_json: AsJson = False) -> None:
    """Check what is installed against the lock, in whatever mode. Nothing is imported."""
    with clean_failure():
        policy = policy_in_force(plugin_policy, with_lock=False)
        rows = verify(discover(), replace(policy, mode="locked", lock=read_lock(policy.lock_path)))
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        cells = [(row.name, row.distribution, row.version, row.state, f"{row.code} {row.why}".strip()) for row in rows]
        print_table([("NAME", "DISTRIBUTION", "VERSION", "STATE", "WHY"), *cells])
    if any(row.code for row in rows):
        raise typer.Exit(1)


@contextmanager
def clean_failure() -> Iterator[None]:
    """Errors of the user's or a plugin's end the command as one line on stderr."""
    try:
        yield
    except PacelineError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error


def print_json(value: object) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=2))


def print_table(lines: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_rows(rows: Sequence[Row]) -> None:
    print_table([_HEADER, *(_cells(row) for row in rows)])


def _cells(row: Row) -> tuple[str, ...]:
    hooks = "?" if row.hooks is None else ", ".join(row.hooks)
    return (row.name or "-", row.distribution, row.version, row.api_range or "?", hooks, row.state, row.why)


def _print_spec(spec: dict[str, Any]) -> None:
    typer.echo(f"\n{spec['kind']} {spec['name']}: {spec['summary']}")
    typer.echo(f"  paceline.api {spec['requires_api']}, needs: {', '.join(spec['needs']) or 'nothing'}")
    for option, schema in spec["options"].get("properties", {}).items():
        default = f" = {schema['default']!r}" if "default" in schema else ""
        typer.echo(f"  {option}{default}  {schema.get('description', '')}".rstrip())


def _print_reason(found: Reason) -> None:
    refused = "is refused" if found.plugin else "cannot run"
    verdict = "may run" if found.permitted else f"{refused} ({found.code})"
    typer.echo(f"{found.plugin or found.name} {verdict}")
    lines = {"policy": found.policy, "rule": found.rule, "remedy": found.remedy}
    for label, text in lines.items():
        if text:
            typer.echo(f"  {label}: {text}")
