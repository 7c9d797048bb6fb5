"""What users install: an editable checkout hides files that a wheel lacks."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest


def test_wheels_hold_every_source_file_and_nothing_else(code_packages, wheels: dict[str, Path]) -> None:
    for package in code_packages:
        names = zipfile.ZipFile(wheels[package.name]).namelist()
        held = {name for name in names if ".dist-info/" not in name}
        assert held == {path.as_posix() for path in package.sources}, package.name


def test_wheels_are_typed(code_packages, target: Path) -> None:
    for package in code_packages:
        (top,) = {path.parts[0] for path in package.sources}
        assert (target / top / "py.typed").is_file(), package.name


@pytest.mark.parametrize("module", ["paceline.api", "paceline_ngram", "paceline_draft_model"])
def test_modules_come_from_the_wheels(python_from_wheels: Callable[..., str], target: Path, module: str) -> None:
    origin = python_from_wheels("-c", f"import {module}; print({module}.__file__)").strip()
    assert Path(origin).is_relative_to(target)


def test_plugins_are_listed(python_from_wheels: Callable[..., str]) -> None:
    rows = json.loads(python_from_wheels("-m", "paceline.cli", "plugins", "list", "--json"))
    assert {row["name"] for row in rows} >= {"draft_model", "fixed", "lru", "ngram"}
