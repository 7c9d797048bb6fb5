"""A contributor that parts tenants, and what it becomes by one fault each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.api import FieldValue, IdentityCapabilities, IdentityContributor, RequestFacts, TargetFacts


class Tenant(IdentityContributor):
    """No fault: requests of one tenant share."""

    def __init__(self, context: Any) -> None:
        self.count = 0

    @classmethod
    def capabilities(cls, target: TargetFacts) -> IdentityCapabilities:
        return IdentityCapabilities()

    def request_fields(self, request: RequestFacts) -> Mapping[str, FieldValue]:
        return {"tenant": request.metadata.get("tenant")}


class Hashes(Tenant):
    """gives hash() of the tenant, which differs between processes"""

    def request_fields(self, request: RequestFacts) -> Mapping[str, FieldValue]:
        return {"tenant": hash(str(request.metadata.get("tenant")))}


class Counts(Tenant):
    """numbers the requests"""

    def request_fields(self, request: RequestFacts) -> Mapping[str, FieldValue]:
        self.count += 1
        return {"tenant": request.metadata.get("tenant"), "number": self.count}


class WrongType(Tenant):
    """gives a list"""

    def request_fields(self, request: RequestFacts) -> Mapping[str, FieldValue]:
        return {"tenant": [request.metadata.get("tenant")]}  # type: ignore[dict-item]


class NeedsMetadata(Tenant):
    """fails on requests that name no tenant"""

    def request_fields(self, request: RequestFacts) -> Mapping[str, FieldValue]:
        return {"tenant": request.metadata["tenant"]}


class HeedsOrder(Tenant):
    """gives the metadata as text, in the order in which they were written"""

    def request_fields(self, request: RequestFacts) -> Mapping[str, FieldValue]:
        return {"metadata": json.dumps(dict(request.metadata))}


class NotAsked(Tenant):
    """has fields for blocks and does not say so"""

    def block_fields(self, request: RequestFacts, tokens: Sequence[int], start: int) -> Mapping[str, FieldValue]:
        return {"start": start}


class BlocksCount(Tenant):
    """numbers the blocks"""

    @classmethod
    def capabilities(cls, target: TargetFacts) -> IdentityCapabilities:
        return IdentityCapabilities(block_level=True)

    def block_fields(self, request: RequestFacts, tokens: Sequence[int], start: int) -> Mapping[str, FieldValue]:
        self.count += 1
        return {"number": self.count}


class TakesId(Tenant):
    """parts requests by their ids"""

    def request_fields(self, request: RequestFacts) -> Mapping[str, FieldValue]:
        return {"tenant": request.metadata.get("tenant"), "id": request.request_id}


class Forgets(Tenant):
    """leaves the tenant out"""

    def request_fields(self, request: RequestFacts) -> Mapping[str, FieldValue]:
        return {"known": "tenant" in request.metadata}


class Leaks(Tenant):
    """keeps the fields of every request"""

    def request_fields(self, request: RequestFacts) -> Mapping[str, FieldValue]:
        self.fields: dict[str, Mapping[str, FieldValue]] = getattr(self, "fields", {})
        return self.fields.setdefault(request.request_id, super().request_fields(request))


HONEST = Tenant
CAUGHT_BY = {
    Hashes: "test_fields_are_the_same_in_every_process",
    Counts: "test_fields_are_functions",
    WrongType: "test_fields_are_values",
    NeedsMetadata: "test_fields_are_values",
    HeedsOrder: "test_fields_are_functions",
    NotAsked: "test_block_fields_are_asked_for",
    BlocksCount: "test_block_fields_are_functions",
    TakesId: "test_ids_do_not_part",
    Forgets: "test_what_is_apart_is_not_shared",
    Leaks: "test_memory_does_not_grow",
}
