"""Wheels of the code packages, and a folder with nothing but them in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def run(*arguments: str, **settings) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False, **settings
    )
    assert done.returncode == 0, f"{arguments}:\n{done.stdout}{done.stderr}"
    return done


@pytest.fixture(scope="session")
def wheels(code_packages, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Distribution name -> its wheel, built from the sources."""
    built = {}
    for package in code_packages:
        outdir = tmp_path_factory.mktemp(package.name)
        run("-m", "build", "--wheel", "--no-isolation", "--outdir", str(outdir), str(package.folder))
        (built[package.name],) = outdir.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def target(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheels are installed, and nothing else."""
    folder = tmp_path_factory.mktemp("target")
    paths = [str(wheel) for wheel in wheels.values()]
    run("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(folder), *paths)
    return folder


@pytest.fixture(scope="session")
def python_from_wheels(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run this Python with arguments, outside the checkout and with the installed wheels first; returns its output."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    environment = {**os.environ, "PYTHONPATH": str(target), "PYTHONWARNINGS": "error"}

    def python(*arguments: str) -> str:
        return run(*arguments, cwd=elsewhere, env=environment).stdout

    return python
