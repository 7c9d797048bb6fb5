"""Frozen plugins stay as they are, and there is one of each kind that the present API takes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.api import API_VERSION
from paceline.host.discovery import discover
from paceline.host.errors import PluginApiError
from paceline.host.kinds import KINDS
from paceline.host.loading import load
from paceline.host.negotiation import fits
from paceline.host.registration import Declaration, declarations
from paceline.host.selection import Selection

DIGESTS = Path(__file__).with_name("digests.json")


def label(package: Path) -> str:
    return f"{package.parent.name}/{package.name}"


def test_nobody_edits_them(frozen_packages: list[Path], digest: Callable[[Path], str]) -> None:
    """Remedy: put it back. For a new package, add what this test prints; for another API, a new one beside the old."""
    assert {label(package): digest(package) for package in frozen_packages} == json.loads(DIGESTS.read_text())


@pytest.mark.parametrize("planted", ["edited", "added", "renamed", "removed"])
def test_an_edit_changes_the_digest(
    frozen_packages: list[Path], digest: Callable[[Path], str], tmp_path: Path, planted: str
) -> None:
    copy = Path(shutil.copytree(frozen_packages[0], tmp_path / "copy"))
    module = next(copy.glob("*.py"))
    assert digest(copy) == digest(frozen_packages[0])
    if planted == "edited":
        module.write_text(module.read_text() + "\n")
    elif planted == "added":
        (copy / "more.py").touch()
    elif planted == "renamed":
        module.rename(copy / "other.py")
    else:
        module.unlink()
    assert digest(copy) != digest(frozen_packages[0])


@pytest.fixture(scope="module")
def declared(frozen: Path) -> list[tuple[str, Declaration]]:
    """What the frozen plugins declare, each with the plugin's name."""
    plugins = discover([str(frozen)])
    return [(plugin.name, declaration) for plugin in plugins for declaration in declarations(plugin)]


def test_every_kind_has_one_that_runs_on_the_present_api(declared: list[tuple[str, Declaration]]) -> None:
    """Remedy: write a plugin of that kind for the present API into a folder of its own."""
    kinds = {own.kind.name for _, own in declared if fits(own.spec.requires_api, API_VERSION)}
    assert kinds == set(KINDS)


def test_another_api_refuses_them_by_name(declared: list[tuple[str, Declaration]]) -> None:
    for plugin, own in declared:
        named = Selection(own.kind.name, f"{plugin}:{own.spec.name}", {})
        with pytest.raises(PluginApiError, match=f'plugin "{plugin}" .* needs paceline.api ">=0.1,<0.2".* has 99.0'):
            load([named], api_version="99.0")
