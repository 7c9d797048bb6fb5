"""What differs between two surfaces, and whom it breaks: pure functions.

*Callers* are plugins that import, make, call or read what the API gives. *Implementers* are plugins that derive from
its interfaces and implement its hooks. A parameter with a default is nothing to a caller, yet the core passes it to
every implementer, and those written before do not take it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from api_surface import Surface

CALLERS, IMPLEMENTERS = "callers", "implementers"
_ENUMS_THAT_PLUGINS_GIVE = ("DraftShape", "Placement")


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Attributes:
        where: A name, a member of it after a dot, a parameter of that in brackets.
        what: What became of it.
        breaks: Whom: any of ``"callers"`` and ``"implementers"``; nobody = compatible.
    """

    where: str
    what: str
    breaks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({'breaks ' + ' and '.join(self.breaks) if self.breaks else 'compatible'})"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a signature; ``default`` is ``None`` where it has none."""

    kind: str
    type: str
    default: str | None


def changes(old: Surface, new: Surface) -> list[Change]:
    """Every difference but that of ``api_version``."""
    return [*_of_names(old["names"], new["names"]), *_of_hooks(old["hooks"], new["hooks"])]


def _of_names(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        if name not in old:
            yield Change(name, "added")
        elif name not in new:
            yield Change(name, "removed", _everybody_at(old[name]))
        elif old[name]["kind"] != new[name]["kind"]:
            yield Change(name, f"{old[name]['kind']} became {new[name]['kind']}", (CALLERS, IMPLEMENTERS))
        else:
            yield from _of_entry(name, old[name], new[name])


def _everybody_at(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return (CALLERS, IMPLEMENTERS) if entry["kind"] == "interface" else (CALLERS,)


def _of_hooks(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        if name not in old:
            yield Change(name, "hook added")
        elif name not in new:
            yield Change(name, "hook removed", (IMPLEMENTERS,))
        else:
            yield from _of_signature(name, old[name], new[name], IMPLEMENTERS)


def _of_entry(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for part in ("bases", "decorators", "value"):
        if old.get(part) != new.get(part):
            yield Change(name, f"{part} {old.get(part)} became {new.get(part)}", _everybody_at(old))
    if "signature" in old:
        yield from _of_signature(name, old["signature"], new["signature"], CALLERS)
    yield from _of_fields(name, old.get("fields", {}), new.get("fields", {}))
    yield from _of_values(name, old.get("values", {}), new.get("values", {}), old["kind"])
    side = IMPLEMENTERS if old["kind"] == "interface" else CALLERS
    yield from _of_methods(name, old.get("methods", {}), new.get("methods", {}), side)


def _of_fields(owner: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        where = f"{owner}.{name}"
        was, is_now = _split_field(old.get(name, "")), _split_field(new.get(name, ""))
        if name not in old:
            yield _added(where, "field", is_now.default is not None)
        elif name not in new:
            yield Change(where, "field removed", (CALLERS,))
        else:
            yield from _of_typed(where, was, is_now, CALLERS)


def _added(where: str, what: str, has_default: bool) -> Change:
    return Change(where, f"{what} added") if has_default else Change(where, f"{what} without default added", (CALLERS,))


def _split_field(text: str) -> Parameter:
    annotation, separator, default = text.partition(" = ")
    return Parameter("field", annotation, default if separator else None)


def _of_typed(where: str, old: Parameter, new: Parameter, side: str) -> Iterator[Change]:
    if old.kind != new.kind:
        yield Change(where, f"{old.kind} became {new.kind}", (side,))
    if old.type != new.type:
        yield Change(where, f"type {old.type} became {new.type}", (side,))
    if old.default != new.default:
        eases = old.default is None and side == CALLERS
        shown = [text or "none" for text in (old.default, new.default)]
        yield Change(where, f"default {shown[0]} became {shown[1]}", () if eases else (side,))


def _of_values(owner: str, old: Mapping[str, str], new: Mapping[str, str], kind: str) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        where = f"{owner}.{name}"
        if name not in old:  # whoever tells the members of an enum apart meets one that he does not know
            meets = kind == "enum" and owner not in _ENUMS_THAT_PLUGINS_GIVE
            yield Change(where, "added", (CALLERS,) if meets else ())
        elif name not in new:
            yield Change(where, "removed", (CALLERS,))
        elif old[name] != new[name]:
            yield Change(where, f"{old[name]} became {new[name]}", (CALLERS,))


def _of_methods(owner: str, old: Mapping[str, str], new: Mapping[str, str], side: str) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        where = f"{owner}.{name}"
        if name not in new:
            yield Change(where, "method removed", (side,))
        elif name not in old:
            modifiers = _modifiers(new[name])
            what = "abstract method added" if "abstract" in modifiers else "method added"
            yield Change(where, what, _duty(side, modifiers))
        else:
            yield from _of_modifiers(where, _modifiers(old[name]), _modifiers(new[name]), side)
            yield from _of_signature(where, old[name], new[name], side)


def _of_modifiers(where: str, old: set[str], new: set[str], side: str) -> Iterator[Change]:
    if old - {"abstract"} != new - {"abstract"}:
        yield Change(where, f"{sorted(old)} became {sorted(new)}", (side,))
    elif old != new:
        yield Change(where, "became abstract" if "abstract" in new else "got a body", _duty(side, new))


def _modifiers(method: str) -> set[str]:
    return set(method.partition("(")[0].split())


def _duty(side: str, modifiers: set[str]) -> tuple[str, ...]:
    return (side,) if side == IMPLEMENTERS and "abstract" in modifiers else ()


def _of_signature(where: str, old: str, new: str, side: str) -> Iterator[Change]:
    (was, returned), (is_now, returns) = _parsed(old), _parsed(new)
    for name in sorted({*was, *is_now}):
        place = f"{where}({name})"
        if name not in is_now:
            yield Change(place, "parameter removed", (side,))
        elif name in was:
            yield from _of_typed(place, was[name], is_now[name], side)
        elif side == IMPLEMENTERS:
            yield Change(place, "parameter added, which the core passes", (side,))
        else:
            yield _added(place, "parameter", is_now[name].default is not None)
    if _is_moved(was, is_now):
        yield Change(where, f"order of parameters ({', '.join(was)}) became ({', '.join(is_now)})", (side,))
    if returned != returns:
        yield Change(where, f"return type {returned} became {returns}", (side,))


def _is_moved(old: Mapping[str, Parameter], new: Mapping[str, Parameter]) -> bool:
    """Whether a positional argument may reach another parameter than before."""
    was = [name for name, parameter in old.items() if parameter.kind == "positional" and name in new]
    is_now = [name for name, parameter in new.items() if parameter.kind == "positional"]
    return is_now[: len(was)] != was


def _parsed(method: str) -> tuple[dict[str, Parameter], str]:
    """The parameters of a signature in their order, and what it returns."""
    node = ast.parse(f"def f{method[method.index('(') :]}: ...").body[0]
    assert isinstance(node, ast.FunctionDef)
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    found = [("positional", *pair) for pair in zip(positional, defaults, strict=True)]
    found += [("keyword", *pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    found += [(star, own, ast.Constant(())) for star, own in (("*", arguments.vararg), ("**", arguments.kwarg)) if own]
    return {own.arg: Parameter(kind, _text(own.annotation), _text(default)) for kind, own, default in found}, _text(
        node.returns
    )


def _text(node: ast.expr | None) -> Any:
    return None if node is None else ast.unparse(node)
