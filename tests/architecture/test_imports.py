"""Every module can be imported alone and without a warning, and what must be light loads no torch."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN_FILES = [path for top in ("plugins", "contrib") for path in sorted((ROOT / top).glob("*/pyproject.toml"))]
PACKAGE_FOLDERS = [ROOT / "core", *(path.parent for path in PLUGIN_FILES)]
HEAVY = ("torch", "transformers")
LIGHT_PACKAGES = (
    "paceline.api",
    "paceline.host",
    "paceline.config",
    "paceline.cli",
    "paceline_goodput",
    "paceline_ngram",
)


def module_name(path: Path, src: Path) -> str:
    parts = path.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_of(folder: Path) -> list[str]:
    src = folder / "src"
    return sorted(module_name(path, src) for path in src.rglob("*.py") if path.name != "__main__.py")


def plugin_modules_of(folder: Path) -> list[str]:
    """The modules that the package's entry points name: importing them must cost next to nothing."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return list(project["entry-points"]["paceline.plugins"].values())


def is_light(module: str) -> bool:
    in_light_package = any(module == light or module.startswith(light + ".") for light in LIGHT_PACKAGES)
    return module == "paceline" or in_light_package or module in PLUGIN_MODULES


MODULES = [module for folder in PACKAGE_FOLDERS for module in modules_of(folder)]
PLUGIN_MODULES = [module for folder in PACKAGE_FOLDERS for module in plugin_modules_of(folder)]
LIGHT_MODULES = [module for module in MODULES if is_light(module)]
OTHER_MODULES = [module for module in MODULES if not is_light(module)]
API_MODULES = [module for module in MODULES if module.startswith("paceline.api")]


def python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def import_each_alone(preload: str, modules: list[str]) -> dict[str, dict]:
    return json.loads(python(str(Path(__file__).parent / "import_each_alone.py"), preload, *modules))


@pytest.fixture(scope="module")
def light_imports() -> dict[str, dict]:
    return import_each_alone("", LIGHT_MODULES)


@pytest.fixture(scope="module")
def other_imports() -> dict[str, dict]:
    return import_each_alone("torch,safetensors.torch,transformers.modeling_utils", OTHER_MODULES)


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_light_module_imports_alone_without_torch(light_imports: dict[str, dict], module: str) -> None:
    assert light_imports[module]["error"] == ""
    assert not set(HEAVY) & set(light_imports[module]["loaded"])


@pytest.mark.parametrize("module", OTHER_MODULES)
def test_module_imports_alone_without_a_warning(other_imports: dict[str, dict], module: str) -> None:
    assert other_imports[module]["error"] == ""


@pytest.mark.parametrize("module", API_MODULES)
def test_api_loads_nothing_else_of_paceline(light_imports: dict[str, dict], module: str) -> None:
    ours = [name for name in light_imports[module]["loaded"] if name.split(".")[0].startswith("paceline")]
    assert [name for name in ours if name != "paceline" and not name.startswith("paceline.api")] == []


def test_api_works_where_torch_is_not_installed() -> None:
    block = f"import sys; sys.modules.update(dict.fromkeys({HEAVY!r}))"  # None there makes the import fail
    imports = "; ".join(f"import {module}" for module in API_MODULES)
    assert python("-W", "error", "-c", f"{block}; {imports}; print(paceline.api.API_VERSION)").strip()
