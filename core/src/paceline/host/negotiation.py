"""What a plugin asks of the core, against what the core has."""

from __future__ import annotations

from collections.abc import Collection

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from paceline.host.discovery import InstalledPlugin
from paceline.host.errors import PluginApiError, PluginNeedError

__all__ = ["check_api_range", "check_needs", "fits"]


def check_api_range(plugin: InstalledPlugin, requires_api: object, api_version: str) -> None:
    """Refuse a plugin that was not made for ``api_version``.

    Args:
        plugin: The plugin.
        requires_api: Its PEP 440 range, as it declared it.
        api_version: The version of ``paceline.api`` that the core has.

    Raises:
        PluginApiError: if the version lies outside the range, or the range is missing or malformed.
    """
    accepted = _range_of(requires_api)
    if accepted is None:
        raise PluginApiError(
            f"{plugin} declares requires_api = {requires_api!r}, which is not a PEP 440 range; this core has "
            f'paceline.api {api_version}; a plugin made for it declares a range such as ">={api_version}"'
        )
    if not accepted.contains(api_version, prereleases=True):
        raise PluginApiError(
            f'{plugin} needs paceline.api "{requires_api}", this core has {api_version}; install a release of '
            f"{plugin.distribution} made for {api_version}, or a paceline-core that fits"
        )


def fits(requires_api: object, api_version: str) -> bool:
    """Whether ``requires_api`` is a range that holds ``api_version``."""
    accepted = _range_of(requires_api)
    return accepted is not None and accepted.contains(api_version, prereleases=True)


def _range_of(requires_api: object) -> SpecifierSet | None:
    if not isinstance(requires_api, str) or not requires_api.strip():
        return None
    try:
        return SpecifierSet(requires_api)
    except InvalidSpecifier:
        return None


def check_needs(plugin: InstalledPlugin, label: str, needs: Collection[str], offers: Collection[str]) -> None:
    """Refuse a plugin that needs what the engine does not give.

    Raises:
        PluginNeedError: naming what is missing and what is given.
    """
    missing = sorted(set(needs) - set(offers))
    if missing:
        named = ", ".join(f'"{need}"' for need in missing)
        given = ", ".join(sorted(offers)) or "none"
        raise PluginNeedError(
            f"{plugin} needs capability {named}, which this engine does not give (given: {given}); "
            f"choose another {label}"
        )
