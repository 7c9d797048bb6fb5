"""Which plugins are installed, read from metadata alone: no plugin is imported.

Each metadata file is read on its own, so that one which cannot be parsed hides no other.
"""

from __future__ import annotations

import configparser
import glob
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import entrypoints

from paceline.api.hooks import ENTRY_POINT_GROUP
from paceline.host.names import canonical_name

__all__ = ["InstalledPlugin", "discover"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_INFO_PATTERNS = ("*.dist-info", "*.egg-info")
_UNREADABLE = (configparser.Error, UnicodeDecodeError, zipfile.BadZipFile, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPlugin:
    """An entry point in the group ``paceline.plugins``.

    Attributes:
        name: Name of the entry point, and so of the plugin; ``""`` when the metadata cannot be parsed.
        distribution: Canonical name of the distribution.
        version: Its version, ``"unknown"`` when the metadata has none.
        value: ``module`` or ``module:object``.
        location: Where the metadata lies.
        problem: Why the metadata cannot be used; ``""`` when it can.
        shadowed: Where the same plugin of the same distribution lies again, later on the search path.
    """

    name: str
    distribution: str
    version: str
    value: str
    location: str
    problem: str = ""
    shadowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        origin = f'distribution {self.distribution}, entry point "{self.entry_point}"'
        return f'plugin "{self.name}" {self.version} ({origin})'

    @property
    def entry_point(self) -> str:
        """The entry point as the metadata writes it."""
        return f"{self.name} = {self.value}"


def discover(search_path: Sequence[str] | None = None) -> tuple[InstalledPlugin, ...]:
    """Find every installed plugin, ordered by name, then distribution, version and place.

    Args:
        search_path: Folders, wheels and eggs to look in; ``sys.path`` unless given.

    Returns:
        One entry for each name and distribution. What lies behind several paths (links) is found once; a
        distribution that lies in several folders is the one that an import finds, the first on the path. Two
        versions of one distribution in one folder are both kept, since nothing tells which of them is there.
    """
    places = sys.path if search_path is None else search_path
    found = _without_shadowed(plugin for place in places for plugin in _plugins_at(place or os.curdir))
    return tuple(sorted(found, key=lambda plugin: (plugin.name, plugin.distribution, plugin.version, plugin.location)))


def _plugins_at(place: str) -> Iterator[InstalledPlugin]:
    if os.path.isdir(place) and not place.endswith(".egg"):
        for pattern in _INFO_PATTERNS:
            for path in sorted(glob.glob(os.path.join(glob.escape(place), pattern, "entry_points.txt"))):
                yield from _plugins_of_file(os.path.realpath(path))
    elif os.path.exists(place):
        yield from _plugins_of_archive(os.path.realpath(place))


def _plugins_of_file(path: str) -> Iterator[InstalledPlugin]:
    info = os.path.dirname(path)
    if os.path.basename(info).startswith("~"):  # left behind by pip
        return
    try:
        config = _config_of(path)
    except _UNREADABLE as error:
        yield _unreadable(*_identity_of(info), info, error)
    else:
        if config is not None and config.has_section(ENTRY_POINT_GROUP):
            yield from _plugins_of_config(config, *_identity_of(info), info)


def _config_of(path: str) -> configparser.ConfigParser | None:
    with open(path, "rb") as file:
        content = file.read()
    if ENTRY_POINT_GROUP.encode() not in content:  # most files are not ours, and parsing is what takes time
        return None
    config: configparser.ConfigParser = entrypoints.CaseSensitiveConfigParser(delimiters=("=",))
    config.read_string(content.decode("utf-8"))
    return config


def _plugins_of_archive(place: str) -> Iterator[InstalledPlugin]:
    try:
        records = list(entrypoints.iter_files_distros([place]))
    except _UNREADABLE as error:
        yield _unreadable(*_split_stem(os.path.basename(place)), place, error)
        return
    for config, distro in records:
        if config.has_section(ENTRY_POINT_GROUP):
            yield from _plugins_of_config(config, canonical_name(distro.name), distro.version or "unknown", place)


def _plugins_of_config(
    config: configparser.ConfigParser, distribution: str, version: str, location: str
) -> Iterator[InstalledPlugin]:
    for name, value in config.items(ENTRY_POINT_GROUP, raw=True):
        yield InstalledPlugin(
            name=name,
            distribution=distribution,
            version=version,
            value=value,
            location=location,
            problem=_problem_of(name, value),
        )


def _problem_of(name: str, value: str) -> str:
    if not _NAME.fullmatch(name):
        return f'the entry point\'s name "{name}" is not of the form [a-z][a-z0-9_]*'
    try:
        entrypoints.EntryPoint.from_string(value, name)
    except entrypoints.BadEntryPoint:
        return f'the entry point\'s value "{value}" is not of the form module or module:object'
    return ""


def _unreadable(distribution: str, version: str, location: str, error: Exception) -> InstalledPlugin:
    reason = " ".join(str(error).split())
    return InstalledPlugin(
        name="",
        distribution=distribution,
        version=version,
        value="",
        location=location,
        problem=f"the entry points cannot be parsed: {reason}",
    )


def _identity_of(info: str) -> tuple[str, str]:
    name, version = _split_stem(os.path.basename(info))
    headers = _headers_of(info)
    return canonical_name(headers.get("name", name)), headers.get("version", version)


def _split_stem(filename: str) -> tuple[str, str]:
    distro = entrypoints.Distribution.from_name_version(os.path.splitext(filename)[0])
    return canonical_name(distro.name), (distro.version or "unknown").partition("-")[0]


def _headers_of(info: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for filename in ("METADATA", "PKG-INFO"):
        path = os.path.join(info, filename)
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in iter(file.readline, ""):
                    key, colon, value = line.partition(":")
                    if not line.strip() or len(headers) == 2:
                        break
                    if colon and key.lower() in ("name", "version"):
                        headers[key.lower()] = value.strip()
    return headers


def _without_shadowed(found: Iterable[InstalledPlugin]) -> list[InstalledPlugin]:
    kept: dict[tuple[str, ...], InstalledPlugin] = {}
    for plugin in found:
        first = next((p for p in kept.values() if _shadows(p, plugin)), None)
        if first is None:
            kept[(plugin.name, plugin.distribution, plugin.location)] = plugin
        elif plugin.location not in (first.location, *first.shadowed):
            key = (first.name, first.distribution, first.location)
            kept[key] = replace(first, shadowed=(*first.shadowed, plugin.location))
    return list(kept.values())


def _shadows(first: InstalledPlugin, later: InstalledPlugin) -> bool:
    if (first.name, first.distribution) != (later.name, later.distribution):
        return False
    in_one_folder = os.path.dirname(first.location) == os.path.dirname(later.location)
    return first.version == later.version or not in_one_folder
