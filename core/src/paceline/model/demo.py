"""The demo model: a GGUF file, converted once to float32 safetensors in the cache folder."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["converted"]

_FORMAT = "1"


def converted(gguf: Path, convert: Callable[[Path, Path], None], folder: Path) -> Path:
    """The directory of the converted file; made on the first call.

    It is keyed by the file's content and becomes visible by one rename, so a directory that exists is complete,
    whoever was interrupted while making it.

    Args:
        gguf: The file.
        convert: ``(gguf, directory)``: writes the converted model into an empty directory.
        folder: The cache folder.
    """
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    target = folder / "models" / f"{gguf.stem}-{digest[:16]}-v{_FORMAT}"
    if not target.is_dir():
        _convert_into(target, gguf, convert)
    return target


def _convert_into(target: Path, gguf: Path, convert: Callable[[Path, Path], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        convert(gguf, scratch)
        try:
            scratch.rename(target)
        except OSError:
            # Another process finished first; anything else is an error.
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
