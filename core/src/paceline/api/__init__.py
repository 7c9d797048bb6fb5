"""The contract between Paceline's core and its plugins: what plugins import, and all they import.

Importing it does not import torch. It has its own version, ``API_VERSION``. All data that crosses it are frozen,
keyword-only dataclasses; a new field with a default is a compatible change, all else is not.
"""

from paceline.api.controllers import (
    ControllerCapabilities,
    ControllerContext,
    ControllerSpec,
    EngineState,
    SpeculationController,
    StepOutcome,
)
from paceline.api.drafts import Choose, Drafts
from paceline.api.errors import PacelineError, PluginError
from paceline.api.eviction import (
    BlockFacts,
    EvictionCapabilities,
    EvictionContext,
    EvictionPolicy,
    EvictionPolicySpec,
)
from paceline.api.facts import RequestFacts, SamplingFacts, TargetFacts
from paceline.api.hooks import ENTRY_POINT_GROUP, hookimpl, hookspec
from paceline.api.identity import (
    FieldValue,
    IdentityCapabilities,
    IdentityContext,
    IdentityContributor,
    IdentityContributorSpec,
)
from paceline.api.observers import (
    KVEvent,
    KVEventKind,
    Observer,
    ObserverCapabilities,
    ObserverContext,
    ObserverSpec,
    RequestEvent,
    RequestEventKind,
    StepEvent,
)
from paceline.api.proposers import (
    CommittedBatch,
    DraftShape,
    KVGroup,
    KVView,
    PagedModel,
    Placement,
    ProposeBatch,
    Proposer,
    ProposerCapabilities,
    ProposerContext,
    ProposerSpec,
    ReleaseReason,
    RequestView,
    chain_lookahead,
    no_lookahead,
)
from paceline.api.specs import Spec
from paceline.api.version import API_VERSION

__all__ = [
    "API_VERSION",
    "ENTRY_POINT_GROUP",
    "BlockFacts",
    "Choose",
    "CommittedBatch",
    "ControllerCapabilities",
    "ControllerContext",
    "ControllerSpec",
    "DraftShape",
    "Drafts",
    "EngineState",
    "EvictionCapabilities",
    "EvictionContext",
    "EvictionPolicy",
    "EvictionPolicySpec",
    "FieldValue",
    "IdentityCapabilities",
    "IdentityContext",
    "IdentityContributor",
    "IdentityContributorSpec",
    "KVEvent",
    "KVEventKind",
    "KVGroup",
    "KVView",
    "Observer",
    "ObserverCapabilities",
    "ObserverContext",
    "ObserverSpec",
    "PacelineError",
    "PagedModel",
    "Placement",
    "PluginError",
    "ProposeBatch",
    "Proposer",
    "ProposerCapabilities",
    "ProposerContext",
    "ProposerSpec",
    "ReleaseReason",
    "RequestEvent",
    "RequestEventKind",
    "RequestFacts",
    "RequestView",
    "SamplingFacts",
    "Spec",
    "SpeculationController",
    "StepEvent",
    "StepOutcome",
    "TargetFacts",
    "chain_lookahead",
    "hookimpl",
    "hookspec",
    "no_lookahead",
]
