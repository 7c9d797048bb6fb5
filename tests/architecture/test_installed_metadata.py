"""Editable installs freeze metadata: what is installed must be what the sources say. Remedy: ``make setup``."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement

REMEDY = "the installed metadata are older than pyproject.toml: run `make setup`"


def installed_entry_points(name: str) -> dict[str, dict[str, str]]:
    groups: dict[str, dict[str, str]] = {}
    for point in metadata.distribution(name).entry_points:
        groups.setdefault(point.group, {})[point.name] = point.value
    return groups


def installed_requirements(name: str) -> set[str]:
    requirements = (Requirement(line) for line in metadata.requires(name) or [])
    return {f"{r.name}{r.specifier}" for r in requirements if r.marker is None}


def test_versions(code_packages, tested_set) -> None:
    for package in [*code_packages, tested_set]:
        assert metadata.version(package.name) == package.version, f"{package.name}: {REMEDY}"


def test_entry_points(code_packages) -> None:
    for package in code_packages:
        assert installed_entry_points(package.name) == package.entry_points, f"{package.name}: {REMEDY}"


def test_requirements(code_packages) -> None:
    for package in code_packages:
        declared = {f"{r.name}{r.specifier}" for r in map(Requirement, package.project["dependencies"])}
        assert installed_requirements(package.name) == declared, f"{package.name}: {REMEDY}"
