"""From the configured names to plugins that are ready to build.

The stages, each with an error of its own: discover, policy, import, register and check signatures, API range, needs,
options; then, by the engine, describe and build. Every name has passed the policy before the first import.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from paceline.api.facts import TargetFacts
from paceline.api.specs import Spec
from paceline.api.version import API_VERSION
from paceline.host.boundary import plugin_boundary
from paceline.host.checks import check_capabilities, check_object, check_spec
from paceline.host.discovery import InstalledPlugin, discover
from paceline.host.errors import PluginNotFoundError, PluginOptionsError
from paceline.host.gate import admit
from paceline.host.kinds import KINDS, Kind
from paceline.host.locking import admitted_declarations
from paceline.host.negotiation import check_api_range, check_needs
from paceline.host.options import validate_options
from paceline.host.policy_file import PluginPolicy, policy_in_force
from paceline.host.registration import Declaration
from paceline.host.selection import Selection

__all__ = ["Loaded", "LoadedPlugins", "load", "load_one"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plugin's spec with validated options, ready to describe and build.

    Attributes:
        kind: What it is.
        plugin: Where it comes from.
        spec: Its declaration.
        options: The user's options, validated by ``spec.options``.
    """

    kind: Kind
    plugin: InstalledPlugin
    spec: Spec[Any, Any, Any]
    options: BaseModel

    @property
    def name(self) -> str:
        """The name that a configuration uses: the entry point's, and the spec's after a colon where it differs."""
        own = self.spec.name == self.plugin.name
        return self.plugin.name if own else f"{self.plugin.name}:{self.spec.name}"

    @property
    def distribution(self) -> str:
        """Canonical name of the distribution."""
        return self.plugin.distribution

    @property
    def version(self) -> str:
        """Version of the distribution."""
        return self.plugin.version

    @property
    def entry_point(self) -> str:
        """The entry point, ``name = module[:object]``."""
        return self.plugin.entry_point

    def boundary(self, hook: str) -> AbstractContextManager[None]:
        """Context in which the built object's ``hook`` runs; see ``plugin_boundary``."""
        return plugin_boundary(self.plugin, hook)

    def describe(self, target: TargetFacts) -> Any:
        """Ask for the capabilities; an object of the kind's capabilities class.

        Raises:
            PluginSignatureError: if the plugin returns anything else.
            PluginCallError: if it raises.
        """
        with self.boundary("describe"):
            described = self.spec.describe(self.options, target)
        check_capabilities(self.plugin, self.kind, described)
        return described

    def build(self, context: Any) -> Any:
        """Build the object that does the work; an object of the kind's base class, its methods checked.

        Raises:
            PluginSignatureError: if the object is not what the contract asks for.
            PluginCallError: if the plugin raises.
        """
        with self.boundary("build"):
            built = self.spec.build(self.options, context)
        check_object(self.plugin, self.kind, built)
        return built


@dataclass(frozen=True, slots=True)
class LoadedPlugins:
    """What was named, in the order of kinds, then names: no matter how it was installed or written down."""

    items: tuple[Loaded, ...]

    def all(self, kind: str) -> tuple[Loaded, ...]:
        """The plugins of a kind."""
        return tuple(loaded for loaded in self.items if loaded.kind.name == kind)

    def one(self, kind: str) -> Loaded | None:
        """The plugin of a kind of which a configuration names at most one."""
        return next(iter(self.all(kind)), None)


def load(
    selections: Sequence[Selection],
    *,
    api_version: str = API_VERSION,
    offers: Collection[str] = (),
    search_path: Sequence[str] | None = None,
    policy: PluginPolicy | None = None,
) -> LoadedPlugins:
    """Load what the configuration names, and import nothing else.

    Args:
        selections: What the configuration names.
        api_version: The version of ``paceline.api`` that the core has.
        offers: Capabilities that the engine gives, for ``Spec.needs``.
        search_path: Where to look for metadata; ``sys.path`` unless given.
        policy: What may run; what ``policy_in_force`` finds unless given.

    Raises:
        PluginError: a subclass for each stage; nothing is loaded then.
    """
    rules = policy or policy_in_force()
    installed = discover(search_path)
    ordered = sorted(selections, key=lambda selection: (list(KINDS).index(selection.kind), selection.name))
    permitted = [(selection, admit(installed, selection.name, rules, _label(selection))[0]) for selection in ordered]
    declared = {
        plugin: admitted_declarations(plugin, rules) for plugin in dict.fromkeys(plugin for _, plugin in permitted)
    }
    return LoadedPlugins(
        tuple(_ready(selection, plugin, declared[plugin], api_version, offers) for selection, plugin in permitted)
    )


def load_one(selection: Selection, read_options: Callable[[Spec[Any, Any, Any]], Mapping[str, Any]]) -> Loaded:
    """Load one plugin whose options can be read only once its spec is known.

    Args:
        selection: What is named; its own options are not used.
        read_options: ``spec -> options``.

    Raises:
        PluginError: a subclass for each stage.
    """
    policy = policy_in_force()
    plugin, _ = admit(discover(None), selection.name, policy, _label(selection))
    spec = _usable_spec(selection, plugin, admitted_declarations(plugin, policy), API_VERSION, ())
    return _configured(selection, plugin, spec, read_options(spec))


def _label(selection: Selection) -> str:
    return KINDS[selection.kind].label


def _ready(
    selection: Selection,
    plugin: InstalledPlugin,
    declared: Sequence[Declaration],
    api_version: str,
    offers: Collection[str],
) -> Loaded:
    spec = _usable_spec(selection, plugin, declared, api_version, offers)
    return _configured(selection, plugin, spec, selection.options)


def _usable_spec(
    selection: Selection,
    plugin: InstalledPlugin,
    declared: Sequence[Declaration],
    api_version: str,
    offers: Collection[str],
) -> Spec[Any, Any, Any]:
    kind = KINDS[selection.kind]
    spec = _spec_named(selection, plugin, declared)
    check_api_range(plugin, spec.requires_api, api_version)
    check_spec(plugin, kind, spec)
    check_needs(plugin, kind.label, spec.needs, offers)
    return spec


def _configured(
    selection: Selection, plugin: InstalledPlugin, spec: Spec[Any, Any, Any], options: Mapping[str, Any]
) -> Loaded:
    kind = KINDS[selection.kind]
    with plugin_boundary(plugin, "options"):
        owner = f'{kind.label} "{spec.name}"'
        valid = validate_options(spec.options, options, owner=owner, error_class=PluginOptionsError)
    return Loaded(kind, plugin, spec, valid)


def _spec_named(selection: Selection, plugin: InstalledPlugin, declared: Sequence[Declaration]) -> Spec[Any, Any, Any]:
    wanted = selection.address.spec
    for declaration in declared:
        if declaration.kind.name == selection.kind and declaration.spec.name == wanted:
            return declaration.spec
    given = ", ".join(f'{d.kind.label} "{plugin.name}:{d.spec.name}"' for d in declared)
    raise PluginNotFoundError(f'{plugin} declares no {_label(selection)} "{wanted}"; it declares: {given}')
