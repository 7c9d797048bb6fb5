"""The distribution ``paceline-kit-mutants``: for each contract an honest plugin, and wrong ones with one fault each."""

from __future__ import annotations

from typing import Any

from paceline.api import (
    CommandSpec,
    ConstraintSpec,
    ControllerSpec,
    EvictionPolicySpec,
    IdentityContributorSpec,
    ObserverSpec,
    ProposerSpec,
    hookimpl,
)
from paceline_kit_mutants import commands, constraints, controllers, eviction, identity, observers, proposers
from paceline_kit_mutants.specs import spec


def _specs(kind: Any, module: Any) -> list[Any]:
    return [spec(kind, made) for made in (module.HONEST, *module.CAUGHT_BY)]


@hookimpl
def paceline_proposers() -> list[ProposerSpec]:
    return _specs(ProposerSpec, proposers)


@hookimpl
def paceline_eviction_policies() -> list[EvictionPolicySpec]:
    return _specs(EvictionPolicySpec, eviction)


@hookimpl
def paceline_cache_identity() -> list[IdentityContributorSpec]:
    return _specs(IdentityContributorSpec, identity)


@hookimpl
def paceline_speculation_controllers() -> list[ControllerSpec]:
    return _specs(ControllerSpec, controllers)


@hookimpl
def paceline_constraints() -> list[ConstraintSpec]:
    return _specs(ConstraintSpec, constraints)


@hookimpl
def paceline_observers() -> list[ObserverSpec]:
    return _specs(ObserverSpec, observers)


@hookimpl
def paceline_commands() -> list[CommandSpec]:
    return _specs(CommandSpec, commands)
