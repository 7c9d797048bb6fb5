"""The device and dtype that a configuration means."""

from __future__ import annotations

import torch

from paceline.model.errors import DeviceError

__all__ = ["resolve_device", "resolve_dtype"]

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def resolve_device(device: str) -> torch.device:
    """The device meant by a configuration value.

    Raises:
        DeviceError: if it is unknown or not there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(f'device "{device}" is unknown; use "auto", "cpu", "cuda" or "cuda:N"') from error
    if found.type not in ("cpu", "cuda"):
        raise DeviceError(f'device "{device}" is not supported; use "auto", "cpu", "cuda" or "cuda:N"')
    count = torch.cuda.device_count() if found.type == "cuda" else 1
    if (found.index or 0) >= count:
        raise DeviceError(f'device "{device}" is not there: torch sees {count} of that kind; use "cpu" or "auto"')
    return found


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype | str:
    """The dtype meant by a configuration value; ``"auto"`` = the checkpoint's.

    Raises:
        DeviceError: if it is not a floating dtype that weights may have.
    """
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    if dtype not in _DTYPES:
        raise DeviceError(f'dtype "{dtype}" is unknown; use "auto" or one of {", ".join(_DTYPES)}')
    return _DTYPES[dtype]
