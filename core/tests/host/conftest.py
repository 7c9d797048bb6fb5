"""Fake installed distributions: metadata and modules in a folder on ``sys.path``."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

PROPOSER = """
from pydantic import BaseModel, Field
from paceline.api import Drafts, Proposer, ProposerCapabilities, ProposerSpec, hookimpl

class Options(BaseModel):
    max_ngram: int = Field(default=3, ge=1, le=16, description="Longest match in tokens.", alias="ngram_max")
    model_config = {"populate_by_name": True}

class Silent(Proposer):
    def propose(self, batch):
        return Drafts.empty(len(batch.requests))

def spec(name="NAME", **changes):
    fields = dict(
        name=name, summary="A test proposer.", options=Options, requires_api=">=0.1,<0.2",
        describe=lambda options, target: ProposerCapabilities(max_tokens=options.max_ngram),
        build=lambda options, context: Silent(),
    )
    return ProposerSpec(**{**fields, **changes})
"""
DECLARES = """
@hookimpl
def paceline_proposers():
    return [spec()]
"""


class Site:
    """A folder of installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: set[str] = set()
        folder.mkdir(exist_ok=True)

    @property
    def path(self) -> list[str]:
        return [str(self.folder)]

    def add(
        self, distribution: str, entry_points: dict[str, str], modules: dict[str, str], version: str = "1.0"
    ) -> Path:
        """Install ``distribution``; ``modules`` maps names to source text."""
        info = self.metadata(distribution, entry_points, version)
        for name, source in modules.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(source))
        records = [f"{name}.py,," for name in modules] + [f"{info.name}/{file},," for file in ("METADATA", "RECORD")]
        (info / "RECORD").write_text("\n".join(records) + "\n")
        self.modules |= set(modules)
        return info

    def metadata(self, distribution: str, entry_points: dict[str, str], version: str = "1.0") -> Path:
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n\nText: no\n")
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[paceline.plugins]", *lines]) + "\n")
        return info

    def proposer(self, name: str, source: str = DECLARES, version: str = "1.0", distribution: str = "") -> Path:
        """Install a distribution with one proposer ``name`` in module ``mod_<name>``."""
        module = f"mod_{(distribution or name).replace('-', '_')}"
        body = PROPOSER.replace("NAME", name) + source.replace("NAME", name)
        return self.add(distribution or f"paceline-{name}", {name: module}, {module: body}, version)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(site.folder))
    yield site
    for name in site.modules:
        sys.modules.pop(name, None)


@pytest.fixture
def make_site(tmp_path: Path) -> type[Site]:
    """The class, for tests with several folders."""
    return Site
