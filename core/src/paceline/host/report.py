"""What ``paceline plugins`` shows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.api.errors import PluginError
from paceline.api.version import API_VERSION
from paceline.host.boundary import plugin_boundary
from paceline.host.checks import check_spec
from paceline.host.discovery import InstalledPlugin
from paceline.host.errors import PluginConflictError, PluginMetadataError
from paceline.host.negotiation import check_api_range
from paceline.host.policy import resolve
from paceline.host.registration import Declaration, declarations

__all__ = ["Row", "list_rows", "show"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One installed plugin.

    Attributes:
        name: Name of the plugin.
        distribution: Its distribution.
        version: The distribution's version.
        entry_point: ``name = module[:object]``.
        api_range: Ranges of ``paceline.api`` that it declares, ``None`` until it is imported.
        hooks: Hooks that it implements, ``None`` until it is imported.
        state: ``installed`` (not imported), ``ready``, ``conflict`` or ``refused``.
        why: The reason for the state.
    """

    name: str
    distribution: str
    version: str
    entry_point: str
    api_range: str | None
    hooks: tuple[str, ...] | None
    state: str
    why: str


def list_rows(installed: Sequence[InstalledPlugin], load: Collection[str] = ()) -> list[Row]:
    """One row for each installed plugin, in the order of ``installed``.

    Args:
        installed: What ``discover`` found.
        load: Names of plugins to import and check; no other is imported.

    Raises:
        PluginNotFoundError: if a name in ``load`` is not installed.
    """
    rows = {plugin: _row(plugin, installed) for plugin in installed}
    for name in load:
        try:
            plugin = resolve(installed, name)
        except (PluginConflictError, PluginMetadataError):  # its row says so already
            continue
        rows[plugin] = _loaded_row(rows[plugin], plugin)[0]
    return list(rows.values())


def show(installed: Sequence[InstalledPlugin], name: str) -> tuple[Row, list[dict[str, Any]]]:
    """Import the plugin called ``name`` and tell all about it.

    Returns:
        Its row and, if it can run, for each spec its kind, name, summary, API range, needs and the JSON
        schema of its options.

    Raises:
        PluginError: if the name is not installed, is offered several times, or has no usable metadata.
    """
    plugin = resolve(installed, name)
    row, declared = _loaded_row(_row(plugin, installed), plugin)
    return row, [_spec_fields(plugin, declaration) for declaration in declared]


def _row(plugin: InstalledPlugin, installed: Sequence[InstalledPlugin]) -> Row:
    state, why = _state_before_import(plugin, installed)
    return Row(
        name=plugin.name,
        distribution=plugin.distribution,
        version=plugin.version,
        entry_point=plugin.entry_point,
        api_range=None,
        hooks=None,
        state=state,
        why=why,
    )


def _state_before_import(plugin: InstalledPlugin, installed: Sequence[InstalledPlugin]) -> tuple[str, str]:
    if plugin.problem:
        return "refused", plugin.problem
    others = [other for other in installed if other.name == plugin.name and other is not plugin]
    if others:
        return "conflict", "also offered by " + ", ".join(f"{other.distribution} {other.version}" for other in others)
    if plugin.shadowed:
        return "installed", f"hides the same plugin in {', '.join(plugin.shadowed)}"
    return "installed", "not imported"


def _loaded_row(row: Row, plugin: InstalledPlugin) -> tuple[Row, tuple[Declaration, ...]]:
    try:
        declared = declarations(plugin)
    except PluginError as error:
        return replace(row, state="refused", why=str(error)), ()
    row = replace(row, api_range=_ranges(declared), hooks=tuple(dict.fromkeys(d.kind.hook for d in declared)))
    try:
        for declaration in declared:
            check_api_range(plugin, declaration.spec.requires_api, API_VERSION)
            check_spec(plugin, declaration.kind, declaration.spec)
    except PluginError as error:
        return replace(row, state="refused", why=str(error)), ()
    return replace(row, state="ready", why=f"fits paceline.api {API_VERSION}"), declared


def _ranges(declared: Sequence[Declaration]) -> str:
    return " and ".join(dict.fromkeys(str(declaration.spec.requires_api) for declaration in declared))


def _spec_fields(plugin: InstalledPlugin, declaration: Declaration) -> dict[str, Any]:
    spec = declaration.spec
    with plugin_boundary(plugin, "options schema"):
        schema = spec.options.model_json_schema()
    return {
        "kind": declaration.kind.name,
        "name": spec.name,
        "summary": spec.summary,
        "requires_api": spec.requires_api,
        "needs": sorted(spec.needs),
        "options": schema,
    }
