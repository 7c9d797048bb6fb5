"""The tensors of a checkpoint by name, also those that transformers has no place for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from paceline.model.errors import CheckpointError

__all__ = ["CheckpointTensors"]


class CheckpointTensors(Mapping[str, torch.Tensor]):
    """Reads a tensor from its file when it is asked for; on the CPU, in the dtype of the file.

    Args:
        checkpoint: A directory with safetensors files.

    Raises:
        CheckpointError: if there is none, or one is damaged.
    """

    def __init__(self, checkpoint: Path) -> None:
        files = sorted(checkpoint.glob("*.safetensors"))
        if not files:
            raise CheckpointError(
                f'"{checkpoint}" holds no .safetensors files to read single tensors from; save the model with '
                "save_pretrained of transformers, and use that directory"
            )
        self._file_of = {name: file for file in files for name in _names(file)}

    def __getitem__(self, name: str) -> torch.Tensor:
        with safe_open(self._file_of[name], framework="pt") as tensors:
            tensor: torch.Tensor = tensors.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


def _names(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as tensors:
            return list(tensors.keys())
    except SafetensorError as error:
        raise CheckpointError(f'"{file}" is damaged ({error}); fetch it again') from error
