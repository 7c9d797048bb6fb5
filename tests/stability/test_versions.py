"""Which version a change asks for, and the command that writes the snapshot only when it is there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from api_changes import Change
from api_surface import API, SNAPSHOT, as_text, read_sources, surface
from api_versions import lowest_version, outdated, uncovered
from refresh import refresh

ROOT = Path(__file__).parents[2]
COMPATIBLE, BREAKING = Change("Drafts.origin", "field added"), Change("Drafts", "removed", ("callers",))


@pytest.mark.parametrize(
    ("released", "found", "lowest"),
    [
        ("0.1", [], "0.1"),
        ("0.1", [COMPATIBLE], "0.1.1"),
        ("0.1.4", [COMPATIBLE], "0.1.5"),
        ("0.1.4", [COMPATIBLE, BREAKING], "0.2"),
        ("1.2", [COMPATIBLE], "1.3"),
        ("1.2.1", [BREAKING], "2.0"),
    ],
)
def test_lowest_version(released: str, found: list[Change], lowest: str) -> None:
    assert str(lowest_version(released, found)) == lowest


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """``(planted={old: new}, version) -> (snapshot, sources)``: of 0.1 and of a copy with changes in ``facts``."""

    def make(planted: dict[str, str], version: str) -> tuple[Path, Path]:
        snapshot, api = tmp_path / "tests" / "stability" / SNAPSHOT.name, tmp_path / API.relative_to(ROOT)
        shutil.copytree(API, api, dirs_exist_ok=True)
        shutil.copytree(SNAPSHOT.parent, snapshot.parent, dirs_exist_ok=True)
        (api / "version.py").write_text('API_VERSION = "0.1"\n', encoding="utf-8")
        snapshot.write_text(as_text(surface(read_sources(api))), encoding="utf-8")
        facts = (API / "facts.py").read_text(encoding="utf-8")
        for old, new in planted.items():
            assert old in facts
            facts = facts.replace(old, new)
        (api / "facts.py").write_text(facts, encoding="utf-8")
        (api / "version.py").write_text(f'API_VERSION = "{version}"\n', encoding="utf-8")
        return snapshot, api

    return make


RENAMED = {"    top_k: int\n": "    most: int\n"}
WIDENED = {"    seed: int\n": "    seed: int\n    stream: int = 0\n"}


@pytest.mark.parametrize(
    ("planted", "too_low", "enough"), [(RENAMED, "0.1.9", "0.2"), (WIDENED, "0.1", "0.1.1"), (RENAMED, "0.1", "1.0")]
)
def test_the_snapshot_is_written_once_the_version_covers_the_changes(
    copy: Callable[..., tuple[Path, Path]], planted: dict[str, str], too_low: str, enough: str
) -> None:
    snapshot, api = copy(planted, too_low)
    before = snapshot.read_text()
    assert "set API_VERSION in core/src/paceline/api/version.py to" in refresh(snapshot, api)
    assert snapshot.read_text() == before
    snapshot, api = copy(planted, enough)
    assert refresh(snapshot, api) == ""
    assert json.loads(snapshot.read_text()) == surface(read_sources(api))


def test_a_refusal_names_change_side_and_version(copy: Callable[..., tuple[Path, Path]]) -> None:
    snapshot, api = copy(RENAMED, "0.1")
    assert refresh(snapshot, api) == (
        "paceline.api 0.1 is not what the snapshot of 0.1 says:\n"
        "  SamplingFacts.most: field without default added (breaks callers)\n"
        "  SamplingFacts.top_k: field removed (breaks callers)\n"
        'set API_VERSION in core/src/paceline/api/version.py to "0.2" or above, or take the changes back'
    )


def test_a_version_does_not_go_back(copy: Callable[..., tuple[Path, Path]]) -> None:
    snapshot, api = copy({}, "0.0.9")
    assert 'to "0.1" or above' in refresh(snapshot, api)


def test_a_bump_without_a_new_snapshot_is_a_failure_with_the_command(copy: Callable[..., tuple[Path, Path]]) -> None:
    snapshot, api = copy(WIDENED, "0.1.1")
    released, present = json.loads(snapshot.read_text()), surface(read_sources(api))
    assert uncovered(released, present) == ""
    assert outdated(released, present) == (
        "the snapshot is of paceline.api 0.1, the sources have 0.1.1:\n"
        "  SamplingFacts.stream: field added (compatible)\n"
        "write it anew with: python tests/stability/refresh.py"
    )


def test_a_change_without_a_bump_is_a_failure(copy: Callable[..., tuple[Path, Path]]) -> None:
    snapshot, api = copy(WIDENED, "0.1")
    assert 'to "0.1.1" or above' in outdated(json.loads(snapshot.read_text()), surface(read_sources(api)))


def run_command(snapshot: Path) -> tuple[int, str]:
    script = str(snapshot.with_name("refresh.py"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stderr


def test_the_command(copy: Callable[..., tuple[Path, Path]]) -> None:
    snapshot, _ = copy(WIDENED, "0.1")
    status, message = run_command(snapshot)
    assert status == 1
    assert 'to "0.1.1" or above' in message
    snapshot, api = copy(WIDENED, "0.1.1")
    assert run_command(snapshot) == (0, "")
    assert snapshot.read_text() == as_text(surface(read_sources(api)))
