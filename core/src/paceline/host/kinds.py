"""The kinds of plugin: the hook that declares each, what it describes and what it builds."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.api import (
    Command,
    CommandCapabilities,
    Constraint,
    ConstraintCapabilities,
    ControllerCapabilities,
    EvictionCapabilities,
    EvictionPolicy,
    IdentityCapabilities,
    IdentityContributor,
    Observer,
    ObserverCapabilities,
    Proposer,
    ProposerCapabilities,
    SpeculationController,
)

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of plugin.

    Attributes:
        name: As in ``Selection.kind``.
        label: As in messages.
        hook: The hook that declares specs of this kind.
        capabilities: What ``describe`` returns.
        base: What ``build`` returns.
    """

    name: str
    label: str
    hook: str
    capabilities: type
    base: type


_ALL = (
    Kind("eviction_policy", "eviction policy", "paceline_eviction_policies", EvictionCapabilities, EvictionPolicy),
    Kind(
        "cache_identity",
        "cache identity contributor",
        "paceline_cache_identity",
        IdentityCapabilities,
        IdentityContributor,
    ),
    Kind(
        "controller",
        "speculation controller",
        "paceline_speculation_controllers",
        ControllerCapabilities,
        SpeculationController,
    ),
    Kind("proposer", "proposer", "paceline_proposers", ProposerCapabilities, Proposer),
    Kind("constraint", "constraint", "paceline_constraints", ConstraintCapabilities, Constraint),
    Kind("observer", "observer", "paceline_observers", ObserverCapabilities, Observer),
    Kind("command", "command", "paceline_commands", CommandCapabilities, Command),
)

KINDS = {kind.name: kind for kind in _ALL}
