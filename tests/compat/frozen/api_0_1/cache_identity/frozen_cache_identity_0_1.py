"""Keeps tenants apart, and blocks with marked tokens apart from those without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from paceline.api import (
    FieldValue,
    IdentityCapabilities,
    IdentityContext,
    IdentityContributor,
    IdentityContributorSpec,
    RequestFacts,
    TargetFacts,
    hookimpl,
)


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    revision: str = ""
    marked_from: int = 10**6


class Tenants(IdentityContributor):
    def __init__(self, options: Options, context: IdentityContext) -> None:
        self.options = options
        self.target = context.target

    def model_fields(self) -> Mapping[str, FieldValue]:
        return {"revision": self.options.revision, "vocabulary": self.target.vocab_size, "own": b"1", "old": False}

    def request_fields(self, request: RequestFacts) -> Mapping[str, FieldValue]:
        tenant = request.metadata.get("tenant")
        return {"tenant": tenant, "long": request.num_prompt_tokens > 1000, "salted": bool(request.cache_salt)}

    def block_fields(self, request: RequestFacts, tokens: Sequence[int], start: int) -> Mapping[str, FieldValue]:
        marked = [token for token in tokens if token >= self.options.marked_from]
        return {"mark": request.metadata.get("mark"), "block": start} if marked else {}


def describe(options: Options, target: TargetFacts) -> IdentityCapabilities:
    return IdentityCapabilities(block_level=options.marked_from < target.vocab_size)


@hookimpl
def paceline_cache_identity() -> list[IdentityContributorSpec]:
    return [
        IdentityContributorSpec(
            name="frozen_cache_identity_0_1",
            summary="Tenants, and marked blocks",
            options=Options,
            requires_api=">=0.1,<0.2",
            describe=describe,
            build=Tenants,
        )
    ]
