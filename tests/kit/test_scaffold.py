"""What ``paceline plugins new`` writes can be built, installed and passes the kit; what it cannot write it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli import app
from paceline.host.kinds import KINDS
from paceline.testing.errors import ScaffoldError
from paceline.testing.scaffold import write_package

NAMES = {kind: f"my-{kind.replace('_', '-')}-idea" for kind in KINDS}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind -> the folder of a package of this kind."""
    folder = tmp_path_factory.mktemp("packages")
    for kind, name in NAMES.items():
        write_package(kind, name, folder)
    return {kind: folder / name for kind, name in NAMES.items()}


def run(*arguments: str, **settings) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, **settings)


@pytest.fixture(scope="module")
def python(packages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run Python where wheels of all packages are installed into a folder that was empty."""
    target = tmp_path_factory.mktemp("target")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    done = run("-m", "pip", "install", *options, "--target", str(target), *map(str, packages.values()))
    assert done.returncode == 0, done.stderr

    def python(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(target), "PYTHONSAFEPATH": "1"}
        done = run(*arguments, cwd=target, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return python


def test_every_package_passes_its_own_test(python: Callable[..., str], packages: dict[str, Path]) -> None:
    printed = python("-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, packages.values()))
    assert re.search(r"\d passed, 4 skipped in", printed), (
        printed
    )  # fields of blocks, three forms of structured outputs


def test_every_package_is_listed(python: Callable[..., str]) -> None:
    rows = {row["name"]: row for row in json.loads(python("-m", "paceline.cli", "plugins", "list", "--json"))}
    for name in NAMES.values():
        assert rows[name.replace("-", "_")]["distribution"] == name


def test_packages_are_small(packages: dict[str, Path]) -> None:
    for kind, folder in packages.items():
        files = [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".py", ".toml", ".md")]
        assert sorted(path.name for path in files) == sorted(
            ["README.md", "__init__.py", "pyproject.toml", f"test_{NAMES[kind].replace('-', '_')}.py"]
        )
        num_lines = sum(len(path.read_text().splitlines()) for path in files)
        assert num_lines < 60, f"{kind}: {num_lines} lines"


def test_the_command_says_what_it_wrote_as_json(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plugins", "new", "proposer", "my-idea", "--folder", str(tmp_path), "--json"])
    written = json.loads(done.stdout)["written"]
    assert sorted(map(Path, written)) == sorted(path for path in tmp_path.rglob("*") if path.is_file())


def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plugins", "new", "eviction-policy", "my-idea", "--folder", str(tmp_path)])
    assert done.exit_code == 0
    assert {Path(line) for line in done.stdout.replace("\n", " ").split()} == {
        path for path in (tmp_path / "my-idea").rglob("*") if path.is_file()
    }


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("propser", "my-idea", '"propser" is no kind of plugin; did you mean "proposer"?'),
        ("proposer", "My Idea", '"My Idea" cannot name a package and its module; use small letters'),
        ("proposer", "../idea", '"../idea" cannot name a package'),
        ("proposer", "class", '"class" cannot name a package'),
        ("proposer", "ngram", "has this name already; choose another"),
        ("proposer", "json", 'a module "json" is installed already'),
        ("proposer", "numpy", 'a module "numpy" is installed already'),
        ("proposer", "taken", "is there already; choose another name, or another place with --folder"),
    ],
)
def test_refusals(tmp_path: Path, kind: str, name: str, message: str) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(ScaffoldError) as caught:
        write_package(kind, name, tmp_path)
    assert message in str(caught.value) and str(caught.value).startswith("PACELINE-E702")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ScaffoldError, match=r"cannot be written: .*--folder"):
        write_package("proposer", "my-idea", tmp_path / "file")
