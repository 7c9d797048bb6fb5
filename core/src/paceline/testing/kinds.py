"""Which contract each kind of plugin is held to."""

from __future__ import annotations

__all__ = ["CONTRACTS"]

CONTRACTS = {
    "proposer": "ProposerContract",
    "eviction_policy": "EvictionPolicyContract",
    "cache_identity": "IdentityContract",
    "controller": "ControllerContract",
    "constraint": "ConstraintContract",
    "observer": "ObserverContract",
    "command": "CommandContract",
}
