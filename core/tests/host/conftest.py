"""Fake installed distributions: metadata and modules in a folder on ``sys.path``."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.host.discovery import discover
from paceline.host.lock_file import lock_text
from paceline.host.locking import lock_plugins
from paceline.host.policy_file import PluginPolicy, policy_in_force

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
        """Install ``distribution``; ``modules`` maps names, such as ``mod`` or ``package/mod``, to source text."""
        info = self.metadata(distribution, entry_points, version)
        for name, source in modules.items():
            path = self.folder / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(source))
        own = [f"{info.name}/{file},," for file in ("METADATA", "RECORD", "entry_points.txt")]
        (info / "RECORD").write_text("\n".join([*(f"{name}.py,," for name in modules), *own]) + "\n")
        self.modules |= {name.replace("/", ".").removesuffix(".__init__") for name in modules}
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
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, without a policy of the caller's."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PACELINE_PLUGIN_POLICY", raising=False)
    return folder


@pytest.fixture
def policy(work: Path) -> Callable[[str], PluginPolicy]:
    """``text -> PluginPolicy``: writes ``paceline-plugins.toml`` and reads what is in force."""

    def write(text: str) -> PluginPolicy:
        (work / "paceline-plugins.toml").write_text(text)
        return policy_in_force()

    return write


@pytest.fixture
def lock(site: Site, policy: Callable[[str], PluginPolicy], work: Path) -> Callable[..., PluginPolicy]:
    """``(*names) -> PluginPolicy`` in mode ``locked``, with a lock of these plugins as they are."""

    def write(*names: str) -> PluginPolicy:
        locked = lock_plugins(discover(site.path), names, PluginPolicy())
        (work / "paceline.lock").write_text(lock_text(locked))
        for name in site.modules:
            sys.modules.pop(name, None)
        return policy('mode = "locked"\n')

    return write


@pytest.fixture
def make_site(tmp_path: Path) -> type[Site]:
    """The class, for tests with several folders."""
    return Site
