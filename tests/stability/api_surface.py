"""The public surface of ``paceline.api``, read from its sources: what a plugin may import, and what that promises.

Read from sources, not from live objects: defaults and annotations stay as they are written, whatever the version of
Python, and a test can plant a change in the text of a file.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any

API = Path(__file__).parents[2] / "core" / "src" / "paceline" / "api"
SNAPSHOT = Path(__file__).with_name("paceline_api.json")

Surface = dict[str, Any]
Sources = Mapping[str, str]

_SPECIAL_METHODS = ("__init__", "__call__", "__enter__", "__exit__")
_MODIFIERS = {"abstractmethod": "abstract", "property": "property", "classmethod": "classmethod"}


def read_sources(folder: Path = API) -> dict[str, str]:
    """Name of each module of the package, and its text."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}


def surface(sources: Sources) -> Surface:
    """``api_version``, ``names`` (exported ones, and the aliases that they are written with) and ``hooks``.

    A signature is text as in Python, without ``self``; a field is its type, and ``" = "`` and its default if it has
    one; a method has its modifiers (``abstract``, ``property``, ``classmethod``) before its signature.
    """
    modules = {name: ast.parse(text) for name, text in sources.items()}
    found = dict(_exported(modules))
    version = found.pop("API_VERSION")
    interfaces = _interfaces(modules.values())
    return {
        "api_version": ast.literal_eval(version.value),
        "names": {name: _entry(found[name], interfaces) for name in sorted(found)},
        "hooks": dict(sorted(_hooks(modules.values()))),
    }


def as_text(present: Surface) -> str:
    """The text of a snapshot."""
    return json.dumps(present, indent=2) + "\n"


def _exported(modules: Mapping[str, ast.Module]) -> Iterator[tuple[str, Any]]:
    package = modules["__init__"]
    homes = {
        alias.name: (node.module or "").rpartition(".")[2]
        for node in package.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    defined = {module: dict(_definitions(tree)) for module, tree in modules.items()}
    names = ast.literal_eval(dict(_definitions(package))["__all__"].value)
    for name in names:
        own = defined[homes[name]]
        yield name, own[name]
        yield from ((alias, own[alias]) for alias in _aliases(own[name], own) if alias not in names)


def _definitions(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield ast.unparse(node.targets[0]), node


def _aliases(node: ast.AST, defined: Mapping[str, Any]) -> set[str]:
    """Types that ``node`` is written with and that its module assigns; type variables are none."""
    used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and not name.id.startswith("_")}
    return {name for name in used if isinstance(getattr(defined.get(name), "value", None), ast.Subscript | ast.BinOp)}


def _interfaces(modules: Iterable[ast.Module]) -> set[str]:
    """The classes that plugins derive from: ``O`` of every ``Spec[C, T, O]``."""
    nodes = [node for tree in modules for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    specs = [node for node in nodes if ast.unparse(node.value) == "Spec" and isinstance(node.slice, ast.Tuple)]
    return {ast.unparse(spec.slice.elts[2]) for spec in specs}  # type: ignore[attr-defined]


def _hooks(modules: Iterable[ast.Module]) -> Iterator[tuple[str, str]]:
    for tree in modules:
        for name, node in _definitions(tree):
            if isinstance(node, ast.FunctionDef) and "hookspec" in _decorators(node):
                yield name, _signature(node)


def _entry(node: Any, interfaces: set[str]) -> dict[str, Any]:
    if isinstance(node, ast.ClassDef):
        return _class_entry(node, interfaces)
    if isinstance(node, ast.FunctionDef):
        return {"kind": "function", "signature": _signature(node)}
    return {"kind": "value", "value": ast.unparse(node.value)}


def _class_entry(node: ast.ClassDef, interfaces: set[str]) -> dict[str, Any]:
    assigned = [line for line in node.body if isinstance(line, ast.Assign)]
    annotated = [line for line in node.body if isinstance(line, ast.AnnAssign)]
    defined = [line for line in node.body if isinstance(line, ast.FunctionDef) and _is_public(line.name)]
    parts = {
        "bases": [ast.unparse(base) for base in node.bases],
        "decorators": _decorators(node),
        "fields": {ast.unparse(line.target): _field(line) for line in annotated},
        "values": {ast.unparse(line.targets[0]): ast.unparse(line.value) for line in assigned},
        "methods": {line.name: _method(line) for line in defined},
    }
    return {"kind": _kind(node, interfaces), **{name: part for name, part in parts.items() if part}}


def _kind(node: ast.ClassDef, interfaces: set[str]) -> str:
    bases = [ast.unparse(base) for base in node.bases]
    if node.name in interfaces:
        return "interface"
    if "Protocol" in bases:
        return "protocol"
    if any(base.endswith("Enum") for base in bases):
        return "enum"
    return "dataclass" if any(text.startswith("dataclass") for text in _decorators(node)) else "class"


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in _SPECIAL_METHODS


def _decorators(node: ast.ClassDef | ast.FunctionDef) -> list[str]:
    return [ast.unparse(decorator) for decorator in node.decorator_list]


def _field(line: ast.AnnAssign) -> str:
    default = "" if line.value is None else f" = {ast.unparse(line.value)}"
    return ast.unparse(line.annotation) + default


def _method(node: ast.FunctionDef) -> str:
    modifiers = [_MODIFIERS[decorator] for decorator in _decorators(node)]
    return " ".join([*modifiers, _signature(node, skipped=1)])


def _signature(node: ast.FunctionDef, skipped: int = 0) -> str:
    arguments = copy(node.args)
    arguments.args = arguments.args[skipped:]
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"({ast.unparse(arguments)}){returns}"
