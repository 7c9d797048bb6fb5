"""Frozen plugins: where they lie, what they are, and a folder in which they are installed."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM

FROZEN = Path(__file__).parent / "frozen"


def _digest(package: Path) -> str:
    """Of the names and contents of a package's files; what an import leaves behind is not looked at."""
    found = hashlib.sha256()
    for path in sorted(path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        for part in (path.relative_to(package).as_posix().encode(), path.read_bytes()):
            found.update(len(part).to_bytes(8, "big") + part)
    return f"sha256:{found.hexdigest()}"


def _install(package: Path, site: Path) -> None:
    """As pip would: the modules, and the metadata that plugins are found by."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for module in package.glob("*.py"):
        shutil.copy(module, site)
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
    )
    points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["paceline.plugins"].items())
    (info / "entry_points.txt").write_text(f"[paceline.plugins]\n{points}", encoding="utf-8")


@pytest.fixture(scope="session")
def digest() -> Callable[[Path], str]:
    """``package -> digest``."""
    return _digest


@pytest.fixture(scope="session")
def frozen_packages() -> list[Path]:
    """The folder of every frozen plugin."""
    return sorted(path.parent for path in FROZEN.glob("*/*/pyproject.toml"))


@pytest.fixture(scope="session")
def frozen(frozen_packages: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the path in which they are all installed."""
    site = tmp_path_factory.mktemp("site")
    for package in frozen_packages:
        _install(package, site)
    sys.path.insert(0, str(site))
    yield site
    sys.path.remove(str(site))
    for module in site.glob("*.py"):
        sys.modules.pop(module.stem, None)


@pytest.fixture
def engine(tiny: Callable[..., str], frozen: Path) -> Iterator[Callable[..., LLM]]:
    """``(**options) -> LLM`` on the tiny model in exact numerics; closed when the test ends."""
    made: list[LLM] = []

    def build(**options: Any) -> LLM:
        made.append(LLM(tiny(), numerics="exact", **{"max_model_len": 96, "block_size": 4} | options))
        return made[-1]

    yield build
    for llm in made:
        llm.close()
