"""Each package of the repository stands in every list that must name it."""

from __future__ import annotations

import ast
import importlib.util
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version


@pytest.fixture(scope="module")
def tools(root: Path) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text())["tool"]


def import_name(package) -> str:
    return package.name.replace("-", "_")


def contract(tools: dict, contract_id: str) -> dict:
    return next(row for row in tools["importlinter"]["contracts"] if row["id"] == contract_id)


def imported_names(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or ".")
    return names


def test_requirements_install_every_package_from_its_folder(root: Path, code_packages) -> None:
    lines = (root / "requirements-dev.txt").read_text().splitlines()
    editable = {line.removeprefix("-e ").split("[")[0] for line in lines if line.startswith("-e ")}
    assert editable == {".", *(f"./{package.folder.relative_to(root)}" for package in code_packages)}


def test_requirements_pin_exactly(root: Path) -> None:
    lines = (root / "requirements-dev.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith(("#", "-e "))]
    assert pins[0] == "torch==2.13.0"
    assert [pin for pin in pins if "==" not in pin] == []


def test_tested_set_names_core_and_first_party_plugins_in_their_versions(root: Path, code_packages, tested_set) -> None:
    requirements = map(Requirement, tested_set.project["dependencies"])
    named = {requirement.name: str(requirement.specifier) for requirement in requirements}
    in_set = [package for package in code_packages if package.folder.parent != root / "contrib"]
    assert named == {package.name: f"=={package.version}" for package in in_set}


def test_plugins_accept_a_bounded_range_of_the_core(code_packages) -> None:
    core, *plugins = code_packages
    for plugin in plugins:
        requirements = map(Requirement, plugin.project["dependencies"])
        on_core = next(requirement for requirement in requirements if requirement.name == core.name)
        operators = {specifier.operator for specifier in on_core.specifier}
        assert operators == {">=", "<"}, plugin.name
        assert Version(core.version) in on_core.specifier, plugin.name


def test_core_dependencies_have_floors_only(code_packages) -> None:
    core = code_packages[0].project
    rows = [*core["dependencies"], *core["optional-dependencies"]["gguf"]]
    specifiers = [specifier for row in rows for specifier in Requirement(row).specifier]
    assert len(specifiers) == len(rows)
    assert {specifier.operator for specifier in specifiers} == {">="}


def test_every_dependency_has_its_reason_in_the_readme(code_packages) -> None:
    core = code_packages[0]
    readme = (core.folder / "README.md").read_text()
    for row in [*core.project["dependencies"], *core.project["optional-dependencies"]["gguf"]]:
        assert Requirement(row).name in readme


def test_import_contracts_cover_every_plugin(tools: dict, plugin_packages) -> None:
    plugins = [import_name(package) for package in plugin_packages]
    assert tools["importlinter"]["root_packages"] == ["paceline", *plugins]
    assert contract(tools, "plugins-api-only")["source_modules"] == plugins
    assert contract(tools, "plugins-independent")["modules"] == plugins
    assert contract(tools, "core-without-plugins")["forbidden_modules"] == plugins


def test_types_are_checked_in_every_package(tools: dict, root: Path, code_packages) -> None:
    sources = [f"{package.folder.relative_to(root)}/src" for package in code_packages]
    assert tools["mypy"]["mypy_path"] == sources
    assert set(tools["mypy"]["packages"]) == {"paceline", *map(import_name, code_packages[1:])}


def test_plugins_inside_the_core_import_the_api_only(code_packages) -> None:
    for module in code_packages[0].entry_points["paceline.plugins"].values():
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None
        ours = {name for name in imported_names(Path(spec.origin)) if name.split(".")[0] == "paceline"}
        assert {name for name in ours if not name.startswith("paceline.api")} == set(), module


def test_every_package_has_its_papers(code_packages) -> None:
    for package in code_packages:
        for name in ("README.md", "CHANGELOG.md", "src", "tests"):
            assert (package.folder / name).exists(), f"{package.name} lacks {name}"
