"""Deprecations: each has its dates and its alternative, warns where it is used, and is gone when it was to be."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

from paceline.api import API_VERSION, deprecated
from paceline.api.deprecated import DEPRECATIONS, Deprecation

NAME = Deprecation(name="Sketches", since="0.2", removal="0.4", alternative="Drafts")
ARGUMENT = Deprecation(name="draw(colour)", since="0.3", removal="1.0", alternative="draw(shade)")


def faults(rows: Sequence[Deprecation], api_version: str) -> list[str]:
    """What is wrong with a registry in this version of the API."""
    found = [f"{row.name} was to be gone in {row.removal}" for row in rows if not _precedes(api_version, row.removal)]
    found += [f"{row.name} goes before it warned" for row in rows if not _precedes(row.since, row.removal)]
    found += [f"{row.name} is deprecated in the future" for row in rows if _precedes(api_version, row.since)]
    found += [f"{row.name} has no alternative" for row in rows if not row.alternative.strip()]
    return found


def _precedes(version: str, other: str) -> bool:
    return Version(version) < Version(other)


def test_nothing_stays_past_its_removal() -> None:
    assert faults(DEPRECATIONS, API_VERSION) == []


def test_every_name_is_there_once() -> None:
    names = [row.name for row in DEPRECATIONS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    ("api_version", "found"),
    [
        ("0.3.9", []),
        ("0.4", ["Sketches was to be gone in 0.4"]),
        ("1.0", ["Sketches was to be gone in 0.4", "draw(colour) was to be gone in 1.0"]),
        ("0.2", ["draw(colour) is deprecated in the future"]),
    ],
)
def test_a_planted_registry_is_held_to_its_dates(api_version: str, found: list[str]) -> None:
    assert faults([NAME, ARGUMENT], api_version) == found


def test_a_row_that_cannot_be_is_found() -> None:
    row = Deprecation(name="x", since="0.4", removal="0.4", alternative=" ")
    assert faults([row], "0.3") == [
        "x goes before it warned",
        "x is deprecated in the future",
        "x has no alternative",
    ]


OLD_API = """
from paceline.api.deprecated import warn_deprecated

def __getattr__(name):
    if name != "Sketches":
        raise AttributeError(name)
    warn_deprecated("Sketches")
    return list

def draw(colour=None):
    if colour is not None:
        warn_deprecated("draw(colour)")
"""


@pytest.fixture
def old_api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    """A module in a file of its own, with a deprecated name and a function with a deprecated argument."""
    monkeypatch.setattr(deprecated, "DEPRECATIONS", (NAME, ARGUMENT))
    (tmp_path / "old_api.py").write_text(OLD_API, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("old_api")
    del sys.modules["old_api"]


def test_a_name_warns_whoever_imports_it(old_api: ModuleType) -> None:
    text = "Sketches is deprecated since paceline.api 0.2 and goes in 0.4; use Drafts"
    with pytest.warns(DeprecationWarning, match=text) as caught:
        from old_api import Sketches
    assert Sketches is list
    assert {warning.filename for warning in caught} == {__file__}


def test_an_argument_warns_whoever_gives_it(old_api: ModuleType) -> None:
    old_api.draw()
    text = r"draw\(colour\) is deprecated since paceline.api 0.3 and goes in 1.0; use draw\(shade\)"
    with pytest.warns(DeprecationWarning, match=text) as caught:
        old_api.draw(colour="red")
    assert [warning.filename for warning in caught] == [__file__]
