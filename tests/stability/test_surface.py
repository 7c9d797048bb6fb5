"""The snapshot is what the sources say, and the sources are read as Python has them."""

from __future__ import annotations

import dataclasses
import inspect
import json
from enum import Enum

import pytest
from api_surface import SNAPSHOT, as_text, read_sources, surface
from api_versions import outdated

import paceline.api
from paceline.host.kinds import KINDS

SURFACE = surface(read_sources())
OF_KIND = {
    kind: [name for name, entry in SURFACE["names"].items() if entry["kind"] == kind]
    for kind in ("dataclass", "enum", "interface", "protocol")
}


def test_the_snapshot_is_what_the_sources_say() -> None:
    problem = outdated(json.loads(SNAPSHOT.read_text(encoding="utf-8")), SURFACE)
    assert not problem, problem


def test_the_snapshot_is_written_in_one_way() -> None:
    assert SNAPSHOT.read_text(encoding="utf-8") == as_text(SURFACE)


def test_every_exported_name_is_there() -> None:
    missing = set(paceline.api.__all__) - SURFACE["names"].keys()
    assert missing == {"API_VERSION"}
    assert SURFACE["api_version"] == paceline.api.API_VERSION


@pytest.mark.parametrize("name", OF_KIND["dataclass"])
def test_fields_are_those_of_the_class(name: str) -> None:
    made = getattr(paceline.api, name)
    own = {field.name: field for field in dataclasses.fields(made) if field.name in made.__annotations__}
    without = [name for name, text in SURFACE["names"][name].get("fields", {}).items() if " = " not in text]
    assert list(SURFACE["names"][name].get("fields", {})) == list(own)
    assert without == [name for name, field in own.items() if not _has_default(field)]


def _has_default(field: dataclasses.Field) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


@pytest.mark.parametrize("name", OF_KIND["dataclass"])
def test_data_are_frozen_and_given_by_keyword(name: str) -> None:
    made = getattr(paceline.api, name)
    assert made.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(made))


@pytest.mark.parametrize("name", OF_KIND["interface"] + OF_KIND["protocol"])
def test_methods_are_those_of_the_class(name: str) -> None:
    made, methods = getattr(paceline.api, name), SURFACE["names"][name]["methods"]
    own = {key for key, value in vars(made).items() if not key.startswith("_") and _is_method(value)}
    assert {key for key in methods if not key.startswith("_")} == own
    abstract = getattr(made, "__abstractmethods__", frozenset()) if name in OF_KIND["interface"] else frozenset()
    assert {key for key, text in methods.items() if text.startswith("abstract ")} == abstract


def _is_method(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property)


@pytest.mark.parametrize("name", OF_KIND["enum"])
def test_members_are_those_of_the_enum(name: str) -> None:
    made: type[Enum] = getattr(paceline.api, name)
    assert SURFACE["names"][name]["values"] == {member.name: repr(member.value) for member in made}


def test_interfaces_are_what_the_host_has_kinds_for() -> None:
    assert set(OF_KIND["interface"]) == {kind.base.__name__ for kind in KINDS.values()}


def test_hooks_are_what_the_host_has_kinds_for() -> None:
    assert set(SURFACE["hooks"]) == {kind.hook for kind in KINDS.values()}
