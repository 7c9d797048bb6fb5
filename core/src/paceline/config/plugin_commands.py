"""``paceline plugins lock``: the command of ``paceline plugins`` that reads the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.config.command_line import clean_exit, key_values, parsed
from paceline.config.commands import ConfigFile, EngineOptions
from paceline.host.commands import AsJson, PolicyFile, app, print_json, print_table
from paceline.host.discovery import InstalledPlugin, discover
from paceline.host.lock_file import LockedPlugin, lock_text
from paceline.host.policy_file import policy_in_force

if TYPE_CHECKING:
    from paceline.config.sources import Resolved

__all__ = ["app"]


@app.command("lock")
def lock_command(
    lock_all: Annotated[bool, typer.Option("--all", help="Lock every installed plugin.")] = False,
    config: ConfigFile = None,
    engine_option: EngineOptions = None,
    plugin_policy: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Write paceline.lock anew, beside the policy: the plugins that the configuration names, and no other.

    They are imported, once the rest of the policy lets them run, to learn what they declare.

    Examples:

      paceline plugins lock

      paceline plugins lock --engine-option proposer=ngram
    """
    from paceline.config.sources import resolve
    from paceline.host.locking import lock_plugins

    given = parsed("--engine-option", key_values, engine_option or [])
    own = {} if plugin_policy is None else {"plugin_policy": plugin_policy}
    with clean_exit():
        found = resolve(given | own, config)
        policy = policy_in_force(found.config.plugin_policy, with_lock=False)
        installed = discover()
        names = _all_names(installed) if lock_all else _configured_names(found)
        locked = lock_plugins(installed, names, policy)
        _write(policy.lock_path, lock_text(locked))
    if as_json:
        print_json({"file": str(policy.lock_path), "plugins": [asdict(plugin) for plugin in locked]})
    else:
        _print_locked(locked, policy.lock_path)


def _all_names(installed: Iterable[InstalledPlugin]) -> list[str]:
    return [plugin.name for plugin in installed if plugin.name]


def _configured_names(found: Resolved) -> list[str]:
    return [selection.name for selection in found.config.selections()]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise typer.BadParameter(f'lock "{path}" cannot be written: {error.strerror}') from error


def _print_locked(locked: Sequence[LockedPlugin], path: Path) -> None:
    if locked:
        cells = [(own.name, own.distribution, own.version, ", ".join(own.kinds), own.hash) for own in locked]
        print_table([("NAME", "DISTRIBUTION", "VERSION", "KINDS", "HASH"), *cells])
    typer.echo(f"{path}: {len(locked)} locked")
