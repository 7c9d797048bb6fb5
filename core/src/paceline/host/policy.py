"""Which installed plugin a configured name means. What no configuration names is never imported."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.api.errors import did_you_mean
from paceline.host.discovery import InstalledPlugin
from paceline.host.errors import PluginConflictError, PluginMetadataError, PluginNotFoundError
from paceline.host.selection import Address

__all__ = ["resolve"]

_FIRST_PARTY = {
    "draft_model": "paceline-draft-model",
    "eagle": "paceline-eagle",
    "fixed": "paceline-core",
    "kv_offload": "paceline-kv-offload",
    "lru": "paceline-core",
    "mtp": "paceline-mtp",
    "ngram": "paceline-ngram",
}


def resolve(installed: Sequence[InstalledPlugin], name: str, label: str = "plugin") -> InstalledPlugin:
    """Return the one installed plugin that ``name`` means.

    Args:
        installed: What ``discover`` found.
        name: The name as configured.
        label: The kind of plugin wanted, for the message.

    Raises:
        PluginNotFoundError: if none has the name; the message lists what is installed, or how to install it.
        PluginConflictError: if several distributions offer it.
        PluginMetadataError: if its metadata cannot be used.
    """
    address = Address.parse(name)
    matches = [plugin for plugin in installed if _is_meant(plugin, address)]
    if not matches:
        raise PluginNotFoundError(_not_found(installed, address, label))
    if len(matches) > 1:
        raise PluginConflictError(_conflict(matches, label))
    if matches[0].problem:
        raise PluginMetadataError(f"{matches[0]} cannot be used: {matches[0].problem}; reinstall or remove it")
    return matches[0]


def _is_meant(plugin: InstalledPlugin, address: Address) -> bool:
    return plugin.name == address.entry_point and address.distribution in ("", plugin.distribution)


def _not_found(installed: Sequence[InstalledPlugin], address: Address, label: str) -> str:
    source = f" of distribution {address.distribution}" if address.distribution else ""
    message = f'{label} "{address.entry_point}"{source} is not installed'
    known = {plugin.name for plugin in installed if plugin.name}
    distribution = _FIRST_PARTY.get(address.entry_point)
    if distribution is not None and address.entry_point not in known:
        message += f"; install it with: pip install {distribution}"
    else:
        near = did_you_mean(address.entry_point, known | _FIRST_PARTY.keys())
        message += near if near.startswith("; did") else ""
    return message + _listing(installed)


def _listing(installed: Sequence[InstalledPlugin]) -> str:
    names = [f"{plugin.name} ({plugin.distribution} {plugin.version})" for plugin in installed if plugin.name]
    unreadable = [f"{plugin.distribution} {plugin.version}" for plugin in installed if not plugin.name]
    listing = f"; installed plugins: {', '.join(names) or 'none'}"
    return listing + (f"; unreadable metadata: {', '.join(unreadable)}" if unreadable else "")


def _conflict(matches: Sequence[InstalledPlugin], label: str) -> str:
    origins = " and ".join(f"{plugin} in {plugin.location}" for plugin in matches)
    name = matches[0].name
    remedy = "remove all but one"
    if len({plugin.distribution for plugin in matches}) == len(matches):
        remedy += f', or name the one you mean, such as "{matches[0].distribution}/{name}"'
    return f'{label} "{name}" is offered {len(matches)} times: by {origins}; {remedy}'
