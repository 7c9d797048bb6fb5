"""``paceline plugins new`` and ``paceline plugins check``, for those who write plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.config.command_line import EXIT_FAILED, clean_exit, key_values, parsed
from paceline.config.plugin_commands import app
from paceline.host.commands import AsJson, print_json
from paceline.testing.errors import KitError

__all__ = ["app", "check"]

Options = Annotated[
    list[str] | None, typer.Option("--option", help="Option of the plugin: key=value; may be repeated.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--setting", help="Attribute of the contract, such as asks: key=JSON; may be repeated."),
]


@app.command("check")
def check_command(
    name: Annotated[str, typer.Argument(help="Name of the plugin, as in a configuration.")],
    option: Options = None,
    setting: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Hold an installed plugin to the contract of its kind, on a tiny model; fail unless every must holds.

    Examples:

      paceline plugins check ngram

      paceline plugins check draft_model --option model=target
    """
    check(name, option or [], setting or [], as_json)


def check(name: str, options: list[str], settings: list[str], as_json: bool) -> None:
    """Check and print; exits with a failure where a plugin does not conform."""
    given = parsed("--option", key_values, options), parsed("--setting", key_values, settings)
    with clean_exit():
        _require_pytest()
        from paceline.testing.runner import check_plugin  # what it checks imports torch

        cards = check_plugin(name, *given)
    if as_json:
        print_json([card.as_dict() for card in cards])
    else:
        typer.echo("\n\n".join("\n".join(card.lines()) for card in cards))
    if not all(card.conforms for card in cards):
        raise typer.Exit(EXIT_FAILED)


def _require_pytest() -> None:
    try:
        import pytest  # noqa: F401
    except ModuleNotFoundError as error:
        raise KitError.without_pytest() from error


@app.command("new")
def new_command(
    kind: Annotated[str, typer.Argument(help="Kind of plugin, such as proposer.")],
    name: Annotated[str, typer.Argument(help="Name of the package, such as my-idea; the plugin is my_idea.")],
    folder: Annotated[Path, typer.Option("--folder", help="Where the package's folder is made.")] = Path("."),
    as_json: AsJson = False,
) -> None:
    """Write a package with a plugin that works, and its test.

    Examples:

      paceline plugins new proposer my-idea

      pip install -e my-idea && pytest my-idea
    """
    from paceline.testing.scaffold import write_package

    with clean_exit():
        written = write_package(kind, name, folder)
    if as_json:
        print_json({"written": [str(path) for path in written]})
    else:
        typer.echo("\n".join(map(str, written)))
