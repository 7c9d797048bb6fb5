"""The mutants, installed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def mutants_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the path with the distribution ``paceline-kit-mutants``: plugins ``mutants:over_budget``, ..."""
    site = tmp_path_factory.mktemp("mutants")
    shutil.copytree(HERE / "paceline_kit_mutants", site / "paceline_kit_mutants")
    info = site / "paceline_kit_mutants-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paceline-kit-mutants\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[paceline.plugins]\nmutants = paceline_kit_mutants\n")
    sys.path.insert(0, str(site))
    yield site
    sys.path.remove(str(site))


@pytest.fixture(scope="session")
def engine_probes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Installs the probes of the engine's tests: ``kit_probes:tenant``, ``kit_probes:watching``, ..."""
    site = tmp_path_factory.mktemp("engine_probes")
    shutil.copy(HERE.parents[1] / "core" / "tests" / "engine" / "engine_probes.py", site / "kit_engine_probes.py")
    info = site / "paceline_kit_engine_probes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paceline-kit-engine-probes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[paceline.plugins]\nkit_probes = kit_engine_probes\n")
    sys.path.insert(0, str(site))
    yield
    sys.path.remove(str(site))
