"""Importing a plugin and asking it what it declares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import entrypoints
import pluggy

from paceline.api import hooks
from paceline.api.specs import Spec
from paceline.api.version import API_VERSION
from paceline.host.boundary import plugin_boundary
from paceline.host.discovery import InstalledPlugin
from paceline.host.errors import PluginImportError, PluginSignatureError
from paceline.host.kinds import KINDS, Kind

__all__ = ["Declaration", "declarations"]


@dataclass(frozen=True, slots=True)
class Declaration:
    """A spec and the kind of the hook that returned it."""

    kind: Kind
    spec: Spec[Any, Any, Any]


def declarations(plugin: InstalledPlugin) -> tuple[Declaration, ...]:
    """Import ``plugin`` and return what it declares, in the order of kinds, then names.

    Raises:
        PluginImportError: if it cannot be imported.
        PluginSignatureError: if its hooks are not those of the contract, or it declares nothing.
        PluginCallError: if a hook raises.
    """
    module = _import(plugin)
    manager = _register(plugin, module)
    found = [declared for kind in KINDS.values() for declared in _declared(plugin, kind, manager)]
    if not found:
        raise PluginSignatureError(f"{plugin} declares nothing{_unmarked(module)}")
    return tuple(found)


def _import(plugin: InstalledPlugin) -> Any:
    try:
        return entrypoints.EntryPoint.from_string(plugin.value, plugin.name).load()
    except (Exception, SystemExit) as error:
        raise PluginImportError(
            f"{plugin} cannot be imported: {type(error).__name__}: {error}; this core has paceline.api {API_VERSION}; "
            f"reinstall {plugin.distribution} with its dependencies, or take the plugin out of the configuration"
        ) from error


def _register(plugin: InstalledPlugin, module: object) -> pluggy.PluginManager:
    # One manager for each plugin: a fault is the plugin's own, and no plugin sees or wraps another's hooks.
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    with plugin_boundary(plugin, "registration"):  # reads the module's attributes, which may be code of the plugin
        problem = _problem_of_hooks(manager, plugin.name, module)
    if problem is not None:
        raise _signature_error(plugin, problem) from problem
    return manager


def _problem_of_hooks(manager: pluggy.PluginManager, name: str, module: object) -> pluggy.PluginValidationError | None:
    try:
        manager.register(module, name=name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        return error
    return None


def _declared(plugin: InstalledPlugin, kind: Kind, manager: pluggy.PluginManager) -> list[Declaration]:
    found: dict[str, Declaration] = {}
    for spec in _specs(plugin, kind, manager):
        if not isinstance(spec, Spec):
            raise PluginSignatureError(f"{plugin}, {kind.hook} returned {spec!r}, not a paceline.api.Spec")
        name = str(spec.name)
        if name in found:
            raise PluginSignatureError(f'{plugin}, {kind.hook} declares {kind.label} "{name}" twice')
        found[name] = Declaration(kind, spec)
    return [found[name] for name in sorted(found)]


def _specs(plugin: InstalledPlugin, kind: Kind, manager: pluggy.PluginManager) -> Iterator[object]:
    caller: pluggy.HookCaller = getattr(manager.hook, kind.hook)
    for implementation in caller.get_hookimpls():
        if implementation.wrapper or implementation.hookwrapper:
            raise PluginSignatureError(f"{plugin}, {kind.hook} is a wrapper; hooks of paceline.api are plain functions")
        with plugin_boundary(plugin, f"{kind.hook} (under paceline.api {API_VERSION})"):
            returned = list(cast("Iterable[object]", implementation.function()))
        yield from returned


def _signature_error(plugin: InstalledPlugin, error: Exception) -> PluginSignatureError:
    reason = " ".join(str(error).split())
    known = ", ".join(kind.hook for kind in KINDS.values())
    return PluginSignatureError(
        f"{plugin} does not fit the hooks of paceline.api {API_VERSION}: {reason}; the hooks, all without "
        f"arguments: {known}"
    )


def _unmarked(module: object) -> str:
    names = [kind.hook for kind in KINDS.values() if hasattr(module, kind.hook)]
    return f": {', '.join(names)} lacks the decorator @paceline.api.hookimpl" if names else " (it implements no hook)"
