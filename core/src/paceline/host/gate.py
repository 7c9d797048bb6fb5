"""Which of the installed plugins may run: asked, and answered, before any of their code is imported."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.api.hooks import ENTRY_POINT_GROUP
from paceline.api.version import API_VERSION
from paceline.host.discovery import InstalledPlugin
from paceline.host.errors import (
    PluginChangedError,
    PluginClaimError,
    PluginDeniedError,
    PluginHashError,
    PluginMissingError,
    PluginNotAllowedError,
    PluginNotLockedError,
    PluginVersionError,
)
from paceline.host.integrity import checked_digest
from paceline.host.lock_file import Lock, LockedPlugin
from paceline.host.policy import resolve
from paceline.host.policy_file import CORE, PluginPolicy, Rule
from paceline.host.selection import Address

__all__ = ["admit", "is_built_in", "locked_entry", "permit", "permit_before_locking"]

_LOCK = "`paceline plugins lock`"


def admit(
    installed: Sequence[InstalledPlugin], name: str, policy: PluginPolicy, label: str = "plugin"
) -> tuple[InstalledPlugin, str]:
    """Return the plugin that ``name`` means, and the rule that lets it run.

    Args:
        installed: What ``discover`` found.
        name: The name as configured.
        policy: What is in force.
        label: The kind of plugin wanted, for messages.

    Raises:
        PluginRefusedError: a subclass for the rule that refuses it.
        PluginNotFoundError, PluginConflictError, PluginMetadataError: as ``resolve``.
    """
    if policy.mode == "locked":
        _check_claims(installed, Address.parse(name), policy.required_lock)
    plugin = resolve(installed, name, label)
    return plugin, permit(plugin, policy)


def permit(plugin: InstalledPlugin, policy: PluginPolicy) -> str:
    """Return the rule that lets an installed plugin run.

    Raises:
        PluginRefusedError: a subclass for the rule that refuses it.
    """
    if is_built_in(plugin):
        return f"built into {CORE}, whose own plugins may run wherever it runs"
    if plugin.distribution == CORE:
        raise PluginClaimError(
            plugin, f"it calls itself {CORE}, and its code lies outside of the core", f"remove {plugin.location}"
        )
    rules = [_permit_listed(plugin, policy), _permit_hashed(plugin, policy), _permit_locked(plugin, policy)]
    return " and ".join(filter(None, rules)) or policy.mode_rule


def permit_before_locking(plugin: InstalledPlugin, policy: PluginPolicy) -> None:
    """Check what a policy says beside its lock.

    Raises:
        PluginRefusedError: a subclass for the rule that refuses it.
    """
    _permit_listed(plugin, policy)
    _permit_hashed(plugin, policy)


def is_built_in(plugin: InstalledPlugin) -> bool:
    """Whether it is one of the core's own, whose code lies in the package that runs already.

    A distribution that merely calls itself like the core cannot name a module outside of that package.
    """
    return plugin.distribution == CORE and plugin.value.startswith("paceline.")


def locked_entry(plugin: InstalledPlugin, policy: PluginPolicy) -> LockedPlugin | None:
    """What the lock in force says of a plugin."""
    if policy.mode != "locked" or is_built_in(plugin):
        return None
    return next(
        (own for own in policy.required_lock.named(plugin.name) if own.distribution == plugin.distribution), None
    )


def _permit_listed(plugin: InstalledPlugin, policy: PluginPolicy) -> str:
    denied = _rule_for(plugin, policy.deny)
    if denied is not None and denied.denies(plugin.version):
        raise PluginDeniedError(plugin, str(denied), "take it out of the configuration, or out of deny")
    if policy.allow is None:
        if policy.mode == "allow":
            raise _not_allowed(plugin, policy, f"{policy.mode_rule}, and there is no list allow")
        return ""
    allowed = _rule_for(plugin, policy.allow)
    if allowed is None:
        raise _not_allowed(plugin, policy, f"{policy.file}: allow does not name {plugin.distribution}")
    if not allowed.allows(plugin.version):
        raise _not_allowed(plugin, policy, f"{allowed} leaves out version {plugin.version}")
    return str(allowed)


def _rule_for(plugin: InstalledPlugin, rules: Sequence[Rule]) -> Rule | None:
    return next((rule for rule in rules if rule.distribution == plugin.distribution), None)


def _not_allowed(plugin: InstalledPlugin, policy: PluginPolicy, rule: str) -> PluginNotAllowedError:
    wanted = f'"{plugin.distribution}=={plugin.version}"'
    return PluginNotAllowedError(plugin, rule, f"to let it run, write {wanted} in allow of {policy.file}")


def _permit_hashed(plugin: InstalledPlugin, policy: PluginPolicy) -> str:
    wanted = policy.hashes.get(plugin.distribution)
    if wanted is None:
        return ""
    digest = checked_digest(plugin)
    rule = f"{policy.file}: hashes.{plugin.distribution}"
    if digest not in wanted:
        raise PluginHashError(
            plugin,
            f"{rule} = {' or '.join(wanted)}, and its files have {digest}",
            f"install the release that was meant, or write this hash in {policy.file}",
        )
    return rule


def _check_claims(installed: Sequence[InstalledPlugin], address: Address, lock: Lock) -> None:
    locked = lock.named(address.entry_point)
    owners = {entry.distribution for entry in locked}
    offers = [plugin for plugin in installed if plugin.name == address.entry_point]
    meant = [plugin for plugin in offers if address.distribution in ("", plugin.distribution)]
    rival = next((plugin for plugin in meant if plugin.distribution not in owners), None)
    if not locked:
        return
    if rival is not None:
        raise PluginClaimError(
            rival,
            f"{lock.file} gives this name to distribution {' and '.join(sorted(owners))}, and {rival.distribution} "
            f"claims it too ({rival.location})",
            f'remove {rival.distribution}, or configure the one you mean, such as "{locked[0].distribution}/'
            f'{address.entry_point}"',
        )
    if not meant and address.distribution in ("", *owners):
        raise PluginMissingError(
            locked[0],
            f"{lock.file} has it, and it is not installed",
            f"install it with: pip install {locked[0].distribution}=={locked[0].version}",
        )


def _permit_locked(plugin: InstalledPlugin, policy: PluginPolicy) -> str:
    if policy.mode != "locked":
        return ""
    entry, file = locked_entry(plugin, policy), policy.required_lock.file
    if entry is None:
        raise PluginNotLockedError(plugin, f"{file} does not have it", f"lock it with {_LOCK}")
    if plugin.version != entry.version:
        raise PluginVersionError(
            plugin,
            f"{file} has version {entry.version}, installed is {plugin.version}",
            f"install it with: pip install {plugin.distribution}=={entry.version}, or lock again with {_LOCK}",
        )
    if (ENTRY_POINT_GROUP, plugin.value) != (entry.group, entry.value):
        raise _changed(plugin, f'{file} has the entry point "{entry.name} = {entry.value}" in group {entry.group}')
    _check_locked_range(plugin, entry)
    digest = checked_digest(plugin)
    if digest != entry.hash:
        raise _changed(plugin, f"{file} has {entry.hash}, and its files have {digest}")
    return f"{file}: {entry.name} of {entry.distribution} {entry.version}, {entry.hash}"


def _changed(plugin: InstalledPlugin, rule: str) -> PluginChangedError:
    return PluginChangedError(
        plugin,
        rule,
        f"reinstall what was locked with: pip install --force-reinstall {plugin.distribution}=={plugin.version}, or, "
        f"if the change is meant, lock again with {_LOCK}",
    )


def _check_locked_range(plugin: InstalledPlugin, entry: LockedPlugin) -> None:
    from paceline.host.negotiation import check_api_range, fits

    if not any(fits(accepted, API_VERSION) for accepted in entry.requires_api):
        check_api_range(plugin, next(iter(entry.requires_api), None), API_VERSION)
