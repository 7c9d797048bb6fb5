"""What ``paceline plugins`` shows. Listing imports no plugin, and nothing that only an imported plugin needs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.api.errors import PluginError
from paceline.api.version import API_VERSION
from paceline.host.discovery import InstalledPlugin
from paceline.host.errors import PluginConflictError, PluginMetadataError, PluginRefusedError
from paceline.host.gate import admit, permit
from paceline.host.lock_file import LockedPlugin
from paceline.host.policy_file import PluginPolicy

if TYPE_CHECKING:
    from paceline.host.registration import Declaration

__all__ = ["Reason", "Row", "Verified", "list_rows", "reason", "show", "verify"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Whether the policy lets a plugin run, and why.

    Attributes:
        name: The name as asked.
        plugin: What it means, ``""`` if nothing or several.
        permitted: Whether it may run.
        policy: The policy in force and its files.
        rule: Which rule of which file says so, or what is wrong with the name.
        code: The code of the error that a start would end with, ``""`` if it may run.
        remedy: What to do, ``""`` if it may run or the rule says it.
    """

    name: str
    plugin: str
    permitted: bool
    policy: str
    rule: str
    code: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One plugin of the lock.

    Attributes:
        name: Its name.
        distribution: Its distribution.
        version: The version that is locked.
        state: ``ok`` or ``refused``.
        code: The code of the error that a start would end with, ``""`` if it is ok.
        why: The reason for the state.
    """

    name: str
    distribution: str
    version: str
    state: str
    code: str
    why: str


def list_rows(
    installed: Sequence[InstalledPlugin], load: Collection[str] = (), policy: PluginPolicy | None = None
) -> list[Row]:
    """One row for each installed plugin, in the order of ``installed``.

    Args:
        installed: What ``discover`` found.
        load: Names of plugins to import and check; no other is imported.
        policy: What may run; everything if left out.

    Raises:
        PluginNotFoundError: if a name in ``load`` is not installed.
    """
    rules = policy or PluginPolicy()
    rows = {plugin: _row(plugin, installed, rules) for plugin in installed}
    for name in load:
        try:
            plugin, _ = admit(installed, name, rules)
        except (PluginConflictError, PluginMetadataError, PluginRefusedError):  # its row says so already
            continue
        rows[plugin] = _loaded_row(rows[plugin], plugin, rules)[0]
    return list(rows.values())


def show(
    installed: Sequence[InstalledPlugin], name: str, policy: PluginPolicy | None = None
) -> tuple[Row, list[dict[str, Any]]]:
    """Import the plugin called ``name`` and tell all about it.

    Returns:
        Its row and, if it can run, for each spec its kind, name, summary, API range, needs and the JSON
        schema of its options.

    Raises:
        PluginError: if the name is not installed, is offered several times, has no usable metadata, or may not run.
    """
    rules = policy or PluginPolicy()
    plugin, _ = admit(installed, name, rules)
    return _loaded_row(_row(plugin, installed, rules), plugin, rules)


def reason(installed: Sequence[InstalledPlugin], name: str, policy: PluginPolicy) -> Reason:
    """Say which rule lets the plugin run or refuses it. Nothing is imported."""
    try:
        plugin, rule = admit(installed, name, policy)
    except PluginRefusedError as error:
        culprit = error.message.partition(" is refused: ")[0]
        return Reason(
            name=name,
            plugin=culprit,
            permitted=False,
            policy=str(policy),
            rule=error.rule,
            code=error.code,
            remedy=error.remedy,
        )
    except PluginError as error:
        return Reason(name=name, plugin="", permitted=False, policy=str(policy), rule=error.message, code=error.code)
    return Reason(name=name, plugin=str(plugin), permitted=True, policy=str(policy), rule=rule)


def verify(installed: Sequence[InstalledPlugin], policy: PluginPolicy) -> list[Verified]:
    """Check every plugin of the lock against what is installed. Nothing is imported.

    Args:
        installed: What ``discover`` found.
        policy: A policy in mode ``locked``, with its lock.
    """
    return [_verified(installed, entry, policy) for entry in policy.required_lock.plugins]


def _verified(installed: Sequence[InstalledPlugin], entry: LockedPlugin, policy: PluginPolicy) -> Verified:
    alone = len(policy.required_lock.named(entry.name)) == 1
    code, why = "", "as it was locked"
    try:
        admit(installed, entry.name if alone else f"{entry.distribution}/{entry.name}", policy)
    except PluginError as error:
        code, why = error.code, error.message
    state = "refused" if code else "ok"
    return Verified(
        name=entry.name, distribution=entry.distribution, version=entry.version, state=state, code=code, why=why
    )


def _row(plugin: InstalledPlugin, installed: Sequence[InstalledPlugin], policy: PluginPolicy) -> Row:
    state, why = _state_before_import(plugin, installed, policy)
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


def _state_before_import(
    plugin: InstalledPlugin, installed: Sequence[InstalledPlugin], policy: PluginPolicy
) -> tuple[str, str]:
    if plugin.problem:
        return "refused", plugin.problem
    others = [other for other in installed if other.name == plugin.name and other is not plugin]
    if others:
        return "conflict", "also offered by " + ", ".join(f"{other.distribution} {other.version}" for other in others)
    try:
        rule = permit(plugin, policy)
    except PluginRefusedError as error:
        return "refused", f"{error.code}: {error.rule}"
    except PluginError as error:
        return "refused", str(error)
    if plugin.shadowed:
        return "installed", f"hides the same plugin in {', '.join(plugin.shadowed)}"
    return "installed", "not imported" if policy.file is None else f"not imported; {rule}"


def _loaded_row(row: Row, plugin: InstalledPlugin, policy: PluginPolicy) -> tuple[Row, list[dict[str, Any]]]:
    from paceline.host import inspection, locking  # pydantic comes with them, which a listing does not need

    declared: Sequence[Declaration] = ()
    try:
        declared = locking.admitted_declarations(plugin, policy)
        row = replace(row, api_range=inspection.ranges(declared), hooks=inspection.hooks(declared))
        inspection.check(plugin, declared)
    except PluginError as error:
        return replace(row, state="refused", why=str(error)), []
    fields = [inspection.spec_fields(plugin, declaration) for declaration in declared]
    return replace(row, state="ready", why=f"fits paceline.api {API_VERSION}"), fields
