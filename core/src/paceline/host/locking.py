"""Making a lock, and holding what a plugin declares against it once it is imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.api.hooks import ENTRY_POINT_GROUP
from paceline.host.discovery import InstalledPlugin
from paceline.host.errors import PluginChangedError
from paceline.host.gate import is_built_in, locked_entry, permit_before_locking
from paceline.host.inspection import check
from paceline.host.integrity import checked_digest
from paceline.host.lock_file import LockedPlugin
from paceline.host.policy import resolve
from paceline.host.policy_file import PluginPolicy
from paceline.host.registration import Declaration, declarations

__all__ = ["admitted_declarations", "lock_plugins"]


def lock_plugins(
    installed: Sequence[InstalledPlugin], names: Iterable[str], policy: PluginPolicy
) -> list[LockedPlugin]:
    """Check the named plugins, import them to learn what they declare, and return what a lock says of them.

    The core's own plugins are left out: they may run wherever the core does. No plugin is imported before every one
    has passed what the policy says beside its lock, and the check of its files.

    Raises:
        PluginError: a subclass for what is wrong with a plugin; nothing is locked then.
    """
    resolved = dict.fromkeys(resolve(installed, name) for name in names)
    plugins = [plugin for plugin in resolved if not is_built_in(plugin)]
    for plugin in plugins:
        permit_before_locking(plugin, policy)
    digests = [checked_digest(plugin) for plugin in plugins]
    return [_locked(plugin, digest) for plugin, digest in zip(plugins, digests, strict=True)]


def admitted_declarations(plugin: InstalledPlugin, policy: PluginPolicy) -> tuple[Declaration, ...]:
    """Import a plugin that the policy has admitted, and return what it declares.

    Raises:
        PluginChangedError: if it declares other ranges, kinds or needs than when it was locked.
        PluginError: as ``declarations``.
    """
    declared = declarations(plugin)
    entry = locked_entry(plugin, policy)
    own = {} if entry is None else _capabilities(declared)
    for what, values in own.items():
        if values != getattr(entry, what):
            raise PluginChangedError(
                plugin,
                f"it declares {what} = {list(values)}, and was locked with {list(getattr(entry, what))}",
                "find out what that depends on, and lock it again where it runs with `paceline plugins lock`",
            )
    return declared


def _locked(plugin: InstalledPlugin, digest: str) -> LockedPlugin:
    declared = declarations(plugin)
    check(plugin, declared)
    return LockedPlugin(
        name=plugin.name,
        distribution=plugin.distribution,
        version=plugin.version,
        group=ENTRY_POINT_GROUP,
        value=plugin.value,
        hash=digest,
        **_capabilities(declared),
    )


def _capabilities(declared: Sequence[Declaration]) -> dict[str, tuple[str, ...]]:
    specs = [declaration.spec for declaration in declared]
    return {
        "requires_api": tuple(sorted({str(spec.requires_api) for spec in specs})),
        "kinds": tuple(sorted({declaration.kind.name for declaration in declared})),
        "needs": tuple(sorted({str(need) for spec in specs for need in spec.needs})),
    }
