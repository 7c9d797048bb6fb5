"""What a contributor to the cache identity is held to: equal requests, equal fields, in every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

import pytest

from paceline.api import (
    FieldValue,
    IdentityCapabilities,
    IdentityContext,
    IdentityContributor,
    RequestFacts,
    TargetFacts,
)
from paceline.testing.contract import Contract, should
from paceline.testing.engines import Ask, add, finish, prompts, random_tokens, run
from paceline.testing.memory import check_memory

__all__ = ["IdentityContract"]

_PRINT_FIELDS = """
import json, sys
given = json.loads(sys.stdin.read())
sys.path[:] = given["path"]
from paceline.api import IdentityContext, RequestFacts, TargetFacts
from paceline.host.loading import load
from paceline.host.selection import Selection
loaded = load([Selection("cache_identity", given["plugin"], given["options"])]).items[0]
built = loaded.build(IdentityContext(target=TargetFacts(**given["target"])))
print(repr([sorted(built.request_fields(RequestFacts(**facts)).items()) for facts in given["requests"]]))
"""


class IdentityContract(Contract):
    """Tests of a contributor to the cache identity.

    Attributes:
        metadata: ``metadata`` of requests that the contributor reads.
        apart: Pairs of ``metadata`` whose requests may not share KV.
    """

    kind = "cache_identity"
    metadata: ClassVar[Sequence[Mapping[str, Any]]] = ()
    apart: ClassVar[Sequence[Sequence[Mapping[str, Any]]]] = ()
    settings = (*Contract.settings, "metadata", "apart")

    def choice(self) -> dict[str, Any]:
        """The configuration's fields."""
        return {"cache_identity": [{"name": self.plugin, "options": dict(self.options)}]}

    def target(self) -> TargetFacts:
        """The facts about the target of the tests."""
        with self.plain() as llm:
            return llm.built.facts

    def build(self) -> IdentityContributor:
        """A new contributor."""
        contributor: IdentityContributor = self.load().build(IdentityContext(target=self.target()))
        return contributor

    def requests(self) -> list[RequestFacts]:
        """Requests without metadata, and with all that the class names."""
        given: list[Mapping[str, Any]] = [{}, *self.metadata, *(each for pair in self.apart for each in pair)]
        facts = [RequestFacts(request_id=f"r{i}", num_prompt_tokens=9, metadata=own) for i, own in enumerate(given)]
        return [*facts, RequestFacts(request_id="salted", num_prompt_tokens=3, cache_salt="salt", trust_domain="t")]

    def test_fields_are_values(self) -> None:
        """Fields are a mapping of names to text, bytes, integers, truth values or nothing, for every request."""
        own = self.build()
        _check_fields("model_fields", own.model_fields())
        for request in self.requests():
            _check_fields("request_fields", own.request_fields(request))
            _check_fields("block_fields", own.block_fields(request, random_tokens(0, 8), 8))

    def test_fields_are_functions(self) -> None:
        """Equal requests have equal fields, whoever came between, in whatever order the metadata were written."""
        own, other, requests = self.build(), self.build(), self.requests()
        first = [dict(own.request_fields(request)) for request in requests]
        for request, fields in reversed(list(zip(requests, first, strict=True))):
            turned = replace(request, metadata=dict(reversed(list(request.metadata.items()))))
            for contributor in (own, other):
                again = dict(contributor.request_fields(turned))
                assert again == fields, f"request_fields said {fields} for a request, then {again}"
        assert own.model_fields() == other.model_fields(), "model_fields differ between two contributors"

    def test_fields_are_the_same_in_every_process(self) -> None:
        """Fields do not depend on a process: no ``hash()`` of text, no ``id()``, no clock."""
        given = {
            "path": sys.path,
            "plugin": self.plugin,
            "options": dict(self.options),
            "target": asdict(self.target()),
            "requests": [asdict(request) for request in self.requests()],
        }
        first, second = (_in_process(json.dumps(given), seed) for seed in ("1", "2"))
        assert first == second, f"request_fields are {first} in one process and {second} in another"

    def test_block_fields_are_asked_for(self) -> None:
        """Who gives fields for blocks says ``block_level``; else they would never be read."""
        described: IdentityCapabilities = self.load().describe(self.target())
        overrides = type(self.build()).block_fields is not IdentityContributor.block_fields
        assert described.block_level or not overrides, (
            "block_fields is defined, and block_level is False: nobody asks it"
        )

    def test_block_fields_are_functions(self) -> None:
        """Fields of a block follow from the request, its tokens and its place alone."""
        if not self.load().describe(self.target()).block_level:
            pytest.skip("the contributor has no fields for blocks")
        own, blocks = self.build(), [(random_tokens(seed, 8), 8 * seed) for seed in range(4)]
        for request in self.requests():
            first = [dict(own.block_fields(request, *block)) for block in blocks]
            again = [dict(own.block_fields(request, *block)) for block in reversed(blocks)][::-1]
            assert first == again, f"block_fields said {first}, then {again}"

    @should
    def test_ids_do_not_part(self) -> None:
        """Two requests that differ in id and length alone may share: else nothing is ever found in the cache."""
        own = self.build()
        for request in self.requests():
            fields = own.request_fields(request)
            other = own.request_fields(replace(request, request_id="other", num_prompt_tokens=77))
            assert fields == other, f"request_fields are {fields}, under another id {other}"

    def test_what_is_apart_is_not_shared(self) -> None:
        """Requests of each pair in ``apart`` find nothing of each other's, and what is their own."""
        if not self.apart:
            pytest.skip('give "apart": pairs of metadata whose requests may not share KV')
        with self.engine() as llm:
            for seed, pair in enumerate(self.apart):
                tokens, cached = random_tokens(seed, 33), []
                for metadata in (*pair, *pair):
                    add(llm, "r", Ask(tokens=tokens, metadata=metadata))
                    llm.engine.step()
                    cached.append(llm.engine.output("r").metrics.num_cached_tokens)
                    finish(llm)
                assert not any(cached[:2]), f"of {list(pair)}, the second found {cached[1]} tokens of the first's"
                assert all(cached[2:]), f"of {list(pair)}, one found nothing of its own: {cached[2:]} tokens"

    def test_tokens_are_the_same(self) -> None:
        """With the contributor the same tokens come as without it."""
        asks = [Ask(tokens=tokens, metadata=request.metadata) for tokens in prompts() for request in self.requests()]
        with self.plain() as llm:
            expected = run(llm, asks)
        with self.engine() as llm:
            assert run(llm, asks) == expected, "other tokens are emitted with the contributor than without it"

    def test_memory_does_not_grow(self) -> None:
        """500 requests leave nothing behind."""
        own, requests, count = self.build(), self.requests(), iter(range(10**6))

        def work() -> None:
            for request in requests:
                own.request_fields(replace(request, request_id=f"request-{next(count):06}"))

        check_memory(own, work, rounds=250, requests_per_round=len(requests))


def _check_fields(hook: str, fields: object) -> None:
    assert isinstance(fields, Mapping), f"{hook} returned {fields!r}, not a mapping"
    for name, value in fields.items():
        assert isinstance(name, str), f"{hook} names a field {name!r}, which is no string"
        fits = value is None or isinstance(value, str | bytes | int)
        assert fits, f"{hook} gives {name} = {value!r}; a field is {FieldValue}"


def _in_process(given: str, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_FIELDS], input=given, capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, f"in a process of its own the contributor failed: {done.stderr.strip()[-500:]}"
    return done.stdout
