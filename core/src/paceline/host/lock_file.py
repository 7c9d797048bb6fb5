"""Reading and writing ``paceline.lock``: plugins down to the content of their files."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from paceline.host.errors import PolicyFileError
from paceline.host.names import canonical_name

__all__ = ["LOCK_NAME", "Lock", "LockedPlugin", "lock_text", "read_lock"]

LOCK_NAME = "paceline.lock"

_FORMAT = 1
_HEAD = f"""\
# Which plugins may run, down to their files. Written by `paceline plugins lock`; do not edit.
format = {_FORMAT}
"""
_AGAIN = "write it again with `paceline plugins lock`"
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPlugin:
    """One plugin as it was when it was locked.

    Attributes:
        name: Name of the entry point.
        distribution: Canonical name of its distribution.
        version: The distribution's version.
        group: The entry point's group.
        value: ``module`` or ``module:object``.
        requires_api: Ranges of ``paceline.api`` that its specs declare, sorted.
        kinds: Kinds of plugin that it declares, sorted.
        needs: Capabilities of the host that its specs need, sorted.
        hash: ``sha256:`` and the digest of the distribution's files; see ``paceline.host.content``.
    """

    name: str
    distribution: str
    version: str
    group: str
    value: str
    requires_api: tuple[str, ...]
    kinds: tuple[str, ...]
    needs: tuple[str, ...]
    hash: str

    def __str__(self) -> str:
        return f'plugin "{self.name}" {self.version} (distribution {self.distribution})'


_KINDS = {field.name: str if field.type == "str" else tuple for field in fields(LockedPlugin)}


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock and the file it was read from."""

    file: Path
    plugins: tuple[LockedPlugin, ...]

    def named(self, name: str) -> list[LockedPlugin]:
        """The locked plugins of that name, of different distributions."""
        return [plugin for plugin in self.plugins if plugin.name == name]


def lock_text(plugins: Iterable[LockedPlugin]) -> str:
    """The file's text: the same for the same plugins, in whatever order they come."""
    ordered = sorted(plugins, key=lambda plugin: (plugin.name, plugin.distribution))
    return _HEAD + "".join(_table(plugin) for plugin in ordered)


def _table(plugin: LockedPlugin) -> str:
    # Strings and lists of strings are written alike in JSON and TOML.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in asdict(plugin).items()]
    return "\n[[plugin]]\n" + "\n".join(lines) + "\n"


def read_lock(file: Path) -> Lock:
    """Read the lock.

    Raises:
        PolicyFileError: if it cannot be read, or is not what ``lock_text`` writes.
    """
    data = _parse(file)
    if data.get("format") != _FORMAT:
        raise PolicyFileError(f"{file} has format {data.get('format')!r}, this core reads {_FORMAT}; {_AGAIN}")
    tables = data.get("plugin", [])
    if data.keys() - {"format", "plugin"} or not isinstance(tables, list):
        raise PolicyFileError(f"{file} has keys that no lock has: {', '.join(sorted(data))}; {_AGAIN}")
    plugins = tuple(_plugin(file, index, table) for index, table in enumerate(tables))
    if len({(plugin.name, plugin.distribution) for plugin in plugins}) < len(plugins):
        raise PolicyFileError(f"{file} has a plugin twice; {_AGAIN}")
    return Lock(file, plugins)


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PolicyFileError(f'lock {file} is missing; make it with "paceline plugins lock"') from error
    except OSError as error:
        raise PolicyFileError(f"lock {file} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise PolicyFileError(f"lock {file} is not TOML that can be read: {error}; {_AGAIN}") from error


def _plugin(file: Path, index: int, table: object) -> LockedPlugin:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in _items(table)}
    if values.keys() != _KINDS.keys() or not all(_is(value, _KINDS[key]) for key, value in values.items()):
        raise PolicyFileError(f"{file}: plugin[{index}] is not of the form that a lock has; {_AGAIN}")
    if values["distribution"] != canonical_name(values["distribution"]) or not _SHA256.fullmatch(values["hash"]):
        raise PolicyFileError(f"{file}: plugin[{index}] has no canonical distribution or no hash; {_AGAIN}")
    return LockedPlugin(**values)


def _items(table: object) -> Iterable[tuple[str, Any]]:
    return table.items() if isinstance(table, dict) else ()


def _is(value: object, kind: type) -> bool:
    if kind is str or not isinstance(value, tuple):
        return isinstance(value, kind)
    return all(isinstance(item, str) for item in value)
