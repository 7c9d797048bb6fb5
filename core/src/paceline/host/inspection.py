"""What an imported plugin declares, and whether it can run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.api.version import API_VERSION
from paceline.host.boundary import plugin_boundary
from paceline.host.checks import check_spec
from paceline.host.discovery import InstalledPlugin
from paceline.host.negotiation import check_api_range
from paceline.host.registration import Declaration

__all__ = ["check", "hooks", "ranges", "spec_fields"]


def check(plugin: InstalledPlugin, found: Sequence[Declaration]) -> None:
    """Check that each spec fits this core.

    Raises:
        PluginApiError, PluginSignatureError: if one does not.
    """
    for declaration in found:
        check_api_range(plugin, declaration.spec.requires_api, API_VERSION)
        check_spec(plugin, declaration.kind, declaration.spec)


def ranges(found: Sequence[Declaration]) -> str:
    """The ranges of ``paceline.api`` that the specs declare."""
    return " and ".join(dict.fromkeys(str(declaration.spec.requires_api) for declaration in found))


def hooks(found: Sequence[Declaration]) -> tuple[str, ...]:
    """The hooks that the plugin implements."""
    return tuple(dict.fromkeys(declaration.kind.hook for declaration in found))


def spec_fields(plugin: InstalledPlugin, declaration: Declaration) -> dict[str, Any]:
    """Everything that can be said of one spec."""
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
