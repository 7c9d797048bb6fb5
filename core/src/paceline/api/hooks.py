"""The hooks. They run once, at start-up, and declare; the objects built from the specs do the work."""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from paceline.api.commands import CommandSpec
from paceline.api.constraints import ConstraintSpec
from paceline.api.controllers import ControllerSpec
from paceline.api.eviction import EvictionPolicySpec
from paceline.api.identity import IdentityContributorSpec
from paceline.api.observers import ObserverSpec
from paceline.api.proposers import ProposerSpec

__all__ = ["ENTRY_POINT_GROUP", "PROJECT", "hookimpl", "hookspec"]

PROJECT = "paceline"
ENTRY_POINT_GROUP = "paceline.plugins"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def paceline_proposers() -> Iterable[ProposerSpec]:
    """Declare proposers."""
    return ()


@hookspec
def paceline_eviction_policies() -> Iterable[EvictionPolicySpec]:
    """Declare eviction policies."""
    return ()


@hookspec
def paceline_cache_identity() -> Iterable[IdentityContributorSpec]:
    """Declare contributors to the cache identity."""
    return ()


@hookspec
def paceline_speculation_controllers() -> Iterable[ControllerSpec]:
    """Declare speculation controllers."""
    return ()


@hookspec
def paceline_constraints() -> Iterable[ConstraintSpec]:
    """Declare constraints."""
    return ()


@hookspec
def paceline_observers() -> Iterable[ObserverSpec]:
    """Declare observers."""
    return ()


@hookspec
def paceline_commands() -> Iterable[CommandSpec]:
    """Declare subcommands of the command line."""
    return ()
