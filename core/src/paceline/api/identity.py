"""Cache identity: fields that decide whether two requests may share KV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.api.facts import RequestFacts, TargetFacts
from paceline.api.specs import Spec

__all__ = [
    "FieldValue",
    "IdentityCapabilities",
    "IdentityContext",
    "IdentityContributor",
    "IdentityContributorSpec",
]

FieldValue = str | bytes | int | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityCapabilities:
    """What a contributor gives.

    Attributes:
        block_level: Whether ``block_fields`` is to be asked for every block.
    """

    block_level: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityContext:
    """What a contributor is built with: the target's facts."""

    target: TargetFacts


class IdentityContributor:
    """Adds named fields to the cache identity. Fields are kept under the contributor's own name.

    Equal fields mean that KV may be shared; leaving out what changes K or V is a wrong answer in waiting.
    """

    def model_fields(self) -> Mapping[str, FieldValue]:
        """Fields of the engine; read once at start."""
        return {}

    def request_fields(self, request: RequestFacts) -> Mapping[str, FieldValue]:
        """Fields of a request; read once at admission."""
        return {}

    def block_fields(self, request: RequestFacts, tokens: Sequence[int], start: int) -> Mapping[str, FieldValue]:
        """Fields of the full block whose ``tokens`` begin at position ``start``; ``{}`` for none."""
        return {}


IdentityContributorSpec = Spec[IdentityCapabilities, IdentityContext, IdentityContributor]
