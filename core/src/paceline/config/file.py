"""Reading ``paceline.yaml``: every fault is named with its line and key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from paceline.api.errors import did_you_mean
from paceline.config.errors import ConfigError
from paceline.config.layer import Layer, Origin, Source
from paceline.config.layout import LAYOUT, misplaced

__all__ = ["read_file"]

Lines = dict[tuple[str, ...], int]

_DEPTH = 3  # section, key, option


def read_file(path: Path) -> Layer:
    """Read a configuration file; the values are not validated yet.

    Raises:
        ConfigError: if it cannot be read, is no YAML, gives a key twice, or has a key that nothing knows.
    """
    data, lines = _parse(path, _text_of(path))
    layer = Layer()
    faults: list[str] = []
    for section, content in _sections(path, data, lines):
        keys = LAYOUT[section]
        for key, value in content.items():
            place = f"{path}:{lines.get((section, str(key)), lines[section,])}"
            if key in keys:
                layer.values[keys[key]] = value
                layer.origins |= _origins(path, lines, (section, key), keys[key], place)
            else:
                faults.append(f'{place}: unknown key "{section}.{key}" = {value!r:.80}{misplaced(section, str(key))}')
    if faults:
        raise ConfigError("; ".join(faults))
    return layer


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from error


def _parse(path: Path, text: str) -> tuple[Any, Lines]:
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        if node is None:
            return None, {}
        _refuse_repeats(path, node, set(), ())
        return yaml.safe_load(text), dict(_lines(node))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{place}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML that can be read: {str(error).splitlines()[0]}") from None


def _refuse_repeats(path: Path, node: yaml.Node, done: set[int], above: tuple[int, ...]) -> None:
    """Refuse a key that is given twice, of which YAML would take the last, and a value that holds itself."""
    if id(node) in above:
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: a value refers to itself")
    if id(node) in done or isinstance(node, yaml.ScalarNode):
        return
    done.add(id(node))
    if isinstance(node, yaml.MappingNode):
        _refuse_repeated_key(path, [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
    inner = [value for _, value in node.value] if isinstance(node, yaml.MappingNode) else node.value
    for value in inner:
        _refuse_repeats(path, value, done, (*above, id(node)))


def _refuse_repeated_key(path: Path, keys: list[yaml.ScalarNode]) -> None:
    first: dict[str, int] = {}
    for key in keys:
        line = key.start_mark.line + 1
        if key.value in first:
            raise ConfigError(f'{path}:{line}: key "{key.value}" is given twice, first in line {first[key.value]}')
        first[key.value] = line


def _lines(node: yaml.Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    if not isinstance(node, yaml.MappingNode) or len(path) == _DEPTH:
        return
    for key, value in node.value:
        yield (*path, str(key.value)), key.start_mark.line + 1
        yield from _lines(value, (*path, str(key.value)))


def _sections(path: Path, data: Any, lines: Lines) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    if data is None:
        return
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the file is not a mapping of sections; known: {', '.join(LAYOUT)}")
    for section, content in data.items():
        place = f"{path}:{lines.get((str(section),), 1)}"
        if section not in LAYOUT:
            raise ConfigError(f'{place}: unknown section "{section}"{_where(str(section))}')
        if section == "model" and isinstance(content, str):
            content = {"name": content}
        if not isinstance(content, dict | None):
            raise ConfigError(f"{place}: section {section} = {content!r:.80} is not a mapping of keys")
        yield section, content or {}


def _where(section: str) -> str:
    near = did_you_mean(section, LAYOUT)
    if near.startswith("; did"):
        return near
    homes = [name for name, keys in LAYOUT.items() if section in keys.keys() | keys.values()]
    return f"; it is a key of section {' or '.join(homes)}" if homes else near


def _origins(path: Path, lines: Lines, at: tuple[str, str], field: str, place: str) -> dict[str, Origin]:
    dotted = ".".join(at)
    own = {
        f"{field}.{keys[2]}": Origin(Source.FILE, f"{path}:{line}", f"{dotted}.{keys[2]}")
        for keys, line in lines.items()
        if len(keys) == _DEPTH and keys[:2] == at
    }
    return {field: Origin(Source.FILE, place, dotted)} | own
