"""The files of a head: where they are, and what tensors they hold."""

from __future__ import annotations

import hashlib
import json
import pickle
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.api import PluginError

__all__ = [
    "DEMO",
    "_DEMO_FOLDER",
    "StoredTensor",
    "find_folder",
    "fingerprint",
    "read_json",
    "stored_tensors",
    "weight_files",
]

DEMO = "demo"
_DEMO_FOLDER = Path(__file__).parent / "data" / "demo"
_PATTERNS = ("model*.safetensors", "pytorch_model*.bin")
_HUB_FAULTS = (HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that has not been read yet."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


def find_folder(name: str) -> Path:
    """The folder of a head: ``"demo"``, a folder, or a hub id, which is downloaded.

    Raises:
        PluginError: if there is none of that name.
    """
    if name == DEMO:
        return _DEMO_FOLDER
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    try:
        return Path(snapshot_download(name, allow_patterns=["config.json", *_PATTERNS]))
    except _HUB_FAULTS as error:
        raise PluginError(f'not found: {error}; give a folder, a hub id, or "{DEMO}"') from error


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights: safetensors if there are any, else torch's own.

    Raises:
        PluginError: if there are none.
    """
    for pattern in _PATTERNS:
        if files := sorted(folder.glob(pattern)):
            return files
    raise PluginError(f'no weights in "{folder}"; expected {" or ".join(_PATTERNS)}')


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        PluginError: if the file cannot be read or holds anything else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PluginError(f'"{path}" cannot be read: {error}; a head comes with its config.json') from error
    if not isinstance(content, dict):
        raise PluginError(f'"{path}" holds a {type(content).__name__}; it must be an object')
    return content


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """The tensors of a weights file by name.

    Raises:
        PluginError: if it cannot be read.
    """
    try:
        return _in_safetensors(file) if file.suffix == ".safetensors" else _in_bin(file)
    except (OSError, SafetensorError, RuntimeError, pickle.UnpicklingError, EOFError, AttributeError) as error:
        raise PluginError(f'"{file}" cannot be read: {error}; download it again') from error


def _in_safetensors(file: Path) -> dict[str, StoredTensor]:
    opened: Any = safe_open(file, framework="pt")

    def stored(name: str) -> StoredTensor:
        return StoredTensor(tuple(opened.get_slice(name).get_shape()), lambda: opened.get_tensor(name))

    return {name: stored(name) for name in opened.keys()}  # noqa: SIM118


def _in_bin(file: Path) -> dict[str, StoredTensor]:
    content = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))

    def stored(tensor: Tensor) -> StoredTensor:
        return StoredTensor(tuple(tensor.shape), lambda: tensor)

    return {name: stored(tensor) for name, tensor in content.items()}


def fingerprint(files: Sequence[Path]) -> str:
    """Hex digest of files' content, each with its length."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.stat().st_size.to_bytes(8, "little"))
        with file.open("rb") as opened:
            while part := opened.read(1 << 24):
                digest.update(part)
    return digest.hexdigest()
