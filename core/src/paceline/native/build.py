"""Compiling the kernels once for each machine, source and compiler."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from paceline.api.errors import PacelineError

__all__ = ["NativeBuildError", "built_library", "cache_folder"]

_FOLDER = Path(__file__).parent
_HEADERS = (
    "decoder.h",
    "attention.h",
    "tiles.h",
    "matmul.h",
    "nibbles.h",
    "panels.h",
    "sampling.h",
    "exact_math.h",
    "vectors.h",
)
_SOURCES = ("kernels.cpp", *_HEADERS)
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi")
_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_S = 180


class NativeBuildError(PacelineError):
    """The kernels cannot be built here."""

    code = "PACELINE-E321"


def cache_folder() -> Path:
    """Where what is made once for this machine is kept: ``$PACELINE_CACHE``, or ``~/.cache/paceline``."""
    return Path(os.environ.get("PACELINE_CACHE") or "~/.cache/paceline").expanduser()


def built_library(cache: Path) -> Path:
    """The shared library, from the cache or made now.

    It is keyed by sources, flags, compiler and CPU, and becomes visible by one rename, so that a file that exists is
    complete whoever was interrupted, and a home shared by several machines holds one for each kind.

    Args:
        cache: The cache folder.

    Raises:
        NativeBuildError: if there is no compiler or it fails.
    """
    compiler = _compiler()
    target = cache / "native" / f"{_key(compiler)}.so"
    if not target.exists():
        _build(compiler, target)
    return target


def _compiler() -> list[str]:
    """The command, with the arguments that CXX may have."""
    chosen = os.environ.get("CXX")
    candidates = (chosen,) if chosen else _COMPILERS
    for candidate in candidates:
        command = shlex.split(candidate)
        found = shutil.which(command[0])
        if found:
            return [found, *command[1:]]
    raise NativeBuildError(
        f"no C++ compiler was found ({', '.join(candidates)}); install g++ or clang++, or name one with CXX"
    )


def _key(compiler: list[str]) -> str:
    digest = hashlib.sha256()
    for part in (*(_FOLDER.joinpath(name).read_bytes() for name in _SOURCES), *(flag.encode() for flag in _FLAGS)):
        digest.update(len(part).to_bytes(8, "big") + part)
    digest.update(_run([*compiler, "--version"]).encode() + repr(compiler).encode() + _cpu().encode())
    return digest.hexdigest()[:32]


def _cpu() -> str:
    """What ``-march=native`` goes by."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return f"{platform.machine()} {platform.processor()} {sorted(set(named))}"


def _build(compiler: list[str], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "kernels.so"
        _run([*compiler, *_FLAGS, str(_FOLDER / "kernels.cpp"), "-o", str(made)])
        made.replace(target)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(f"{command[0]} cannot be run: {error}; name another compiler with CXX") from error
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), f"exit status {done.returncode}")
        raise NativeBuildError(f"{command[0]} cannot build the kernels: {reason}; name another compiler with CXX")
    return done.stdout
