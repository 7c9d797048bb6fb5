"""The files of an installed distribution, as its RECORD lists them, and the one digest of all of them."""

from __future__ import annotations

import csv
import hashlib
import json
import posixpath
from dataclasses import dataclass
from pathlib import Path

import entrypoints

from paceline.host.discovery import InstalledPlugin
from paceline.host.errors import PluginChangedError, PluginEditableError, PluginRecordError

__all__ = ["InstalledFiles", "installed_files"]

_DOMAIN = b"paceline plugin files 1\n"
# What installers write beside the wheel's own files: it differs between them and from machine to machine.
_OF_INSTALLER = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")


@dataclass(frozen=True, slots=True)
class InstalledFiles:
    """What a distribution installed.

    Attributes:
        root: The folder that the paths start from.
        info: Name of the metadata folder in it.
        paths: Paths as RECORD has them, ``/`` between their parts, sorted; without RECORD itself, what the installer
            wrote for itself, its launchers, and bytecode in ``__pycache__``.
    """

    root: Path
    info: str
    paths: tuple[str, ...]

    def digest(self, plugin: InstalledPlugin) -> str:
        """``sha256:`` and the SHA-256 of every path and its content, each with its length, in the order of the paths.

        Raises:
            PluginChangedError: if a file is missing.
        """
        total = hashlib.sha256(_DOMAIN)
        for path in self.paths:
            content = self.content(plugin, path)
            total.update(f"{len(path.encode())} {path} {len(content)}\n".encode())
            total.update(content)
        return f"sha256:{total.hexdigest()}"

    def content(self, plugin: InstalledPlugin, path: str) -> bytes:
        """The content of one file.

        Raises:
            PluginChangedError: if it is missing.
        """
        try:
            return (self.root / path).read_bytes()
        except (OSError, ValueError) as error:
            raise PluginChangedError(
                plugin,
                f"its RECORD lists {path!r:.200}, which cannot be read ({error})",
                f"reinstall it with: pip install --force-reinstall {plugin.distribution}=={plugin.version}",
            ) from error


def installed_files(plugin: InstalledPlugin) -> InstalledFiles:
    """Read the RECORD of the plugin's distribution.

    Raises:
        PluginRecordError: if there is none that can be read.
        PluginEditableError: for an editable install.
    """
    info = Path(plugin.location)
    try:
        with open(info / "RECORD", encoding="utf-8", newline="") as file:
            listed = {posixpath.normpath(row[0].replace("\\", "/")) for row in csv.reader(file) if row}
    except (OSError, ValueError, csv.Error) as error:
        raise PluginRecordError(
            plugin,
            f"{plugin.location} has no RECORD that can be read, so that its files cannot be checked",
            f"install it from a wheel with: pip install --force-reinstall {plugin.distribution}=={plugin.version}",
        ) from error
    if _is_editable(info, listed):
        raise PluginEditableError(
            plugin,
            "it is an editable install, whose files may change at any time",
            'install it without "-e", from its wheel or folder; while you work on it, let no lock or hash name it',
        )
    launchers = _launchers(info)
    paths = (path for path in listed if not _is_left_out(path, info.name, launchers))
    return InstalledFiles(info.parent, info.name, tuple(sorted(paths)))


def _is_editable(info: Path, listed: set[str]) -> bool:
    try:
        origin = json.loads((info / "direct_url.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        origin = {}
    except (OSError, ValueError):
        return True  # it cannot be told, and what cannot be told is not trusted
    directory = origin.get("dir_info", {}) if isinstance(origin, dict) else {}
    if not isinstance(directory, dict) or directory.get("editable", False) is not False:
        return True
    return any(path.startswith("__editable__") for path in listed)


def _is_left_out(path: str, info: str, launchers: frozenset[str]) -> bool:
    folder, name = posixpath.split(path)
    if folder == info:
        return name in _OF_INSTALLER
    if path.startswith("../"):  # a launcher holds the path of the interpreter, and nothing of the plugin's own code
        return posixpath.splitext(name)[0] in launchers
    return posixpath.basename(folder) == "__pycache__" and name.endswith(".pyc")


def _launchers(info: Path) -> frozenset[str]:
    config = entrypoints.CaseSensitiveConfigParser(delimiters=("=",))
    config.read(info / "entry_points.txt", encoding="utf-8")
    groups = [group for group in ("console_scripts", "gui_scripts") if config.has_section(group)]
    names = [name for group in groups for name, _ in config.items(group, raw=True)]
    return frozenset([*names, *(f"{name}-script" for name in names)])
