"""Writing a new plugin: a package that can be installed, works, and passes the kit's test."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from importlib import resources
from pathlib import Path
from string import Template

from paceline import __version__
from paceline.api.errors import did_you_mean
from paceline.api.version import API_VERSION
from paceline.host.discovery import discover
from paceline.host.kinds import KINDS
from paceline.testing.errors import ScaffoldError
from paceline.testing.kinds import CONTRACTS

__all__ = ["write_package"]

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_SETTINGS = {
    "cache_identity": '\n    apart = [({"tenant": "a"}, {"tenant": "b"})]',
    "constraint": "\n    asks = [200, 64]",
    "command": '\n    arguments = ["--target", "{model}"]',
}
_USES = {
    "proposer": '`LLM(model, proposer="$name")`.',
    "eviction_policy": '`LLM(model, eviction_policy="$name")`.',
    "cache_identity": '`LLM(model, cache_identity=["$name"])`.',
    "controller": '`LLM(model, proposer="ngram", controller="$name")`.',
    "constraint": '`LLM(model, constraints=["$name"])`, then `SamplingParams(constraints={"$name": 200})`.',
    "observer": '`LLM(model, observers=["$name"])`.',
    "command": "`paceline train $name --help`.",
}


def write_package(kind: str, name: str, folder: Path) -> list[Path]:
    """Write a package into a new folder ``folder / name``.

    Args:
        kind: A kind of plugin, ``eviction-policy`` or ``eviction_policy``.
        name: The distribution's name; the plugin's and the module's is the same with underscores.
        folder: Where the package's folder is made.

    Returns:
        The files written.

    Raises:
        ScaffoldError: if the kind is unknown, the name is none or taken, or the folder is there already.
    """
    key = kind.replace("-", "_")
    if key not in KINDS:
        kinds = [known.replace("_", "-") for known in KINDS]
        raise ScaffoldError(f'"{kind}" is no kind of plugin{did_you_mean(kind, kinds)}')
    _check_name(name)
    root = folder / name
    if root.exists():
        raise ScaffoldError(f'"{root}" is there already; choose another name, or another place with --folder')
    return _write(root, _contents(key, name))


def _check_name(name: str) -> None:
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(module):
        raise ScaffoldError(
            f'"{name}" cannot name a package and its module; use small letters, digits and single hyphens, beginning '
            "with a letter, such as my-idea"
        )
    plugin = next((plugin for plugin in discover() if plugin.name == module), None)
    if plugin is not None:
        raise ScaffoldError(f"{plugin} has this name already; choose another")
    if module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None:
        raise ScaffoldError(f'a module "{module}" is installed already, and would hide this one; choose another name')


def _contents(key: str, name: str) -> dict[str, str]:
    module = name.replace("-", "_")
    class_name = "".join(part.capitalize() for part in module.split("_"))
    own = {
        "distribution": name,
        "name": module,
        "class_name": class_name,
        "label": KINDS[key].label.capitalize(),
        "contract": CONTRACTS[key],
        "plugin": f"{module}:train" if key == "command" else module,
        "settings": _SETTINGS.get(key, ""),
        "use": Template(_USES[key]).substitute(name=module),
        "api_range": _range_from(API_VERSION),
        "core_range": _range_from(__version__),
    }
    return {
        "pyproject.toml": _filled("pyproject", own),
        "README.md": _filled("readme", own),
        f"src/{module}/__init__.py": _filled(key, own),
        f"tests/test_{module}.py": _filled("test", own),
    }


def _range_from(version: str) -> str:
    """Up to the next version that may break: within 0.x that is the next minor one."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return f">={major}.{minor},<{f'0.{minor + 1}' if major == 0 else major + 1}"


def _filled(template: str, values: dict[str, str]) -> str:
    text = resources.files("paceline.testing").joinpath("templates", f"{template}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _write(root: Path, contents: dict[str, str]) -> list[Path]:
    written = []
    for relative, text in contents.items():
        path = root / relative
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise ScaffoldError(
                f'"{path}" cannot be written: {error.strerror}; choose another place with --folder'
            ) from error
        written.append(path)
    return written
