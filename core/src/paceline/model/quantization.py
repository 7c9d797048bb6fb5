"""Quantised checkpoints: transformers' quantisers load them; here is told why one cannot be had."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from paceline.api.errors import PacelineError
from paceline.model.errors import CheckpointError, MissingPackageError, UnsupportedModelError
from paceline.ops.exact import NumericsError

__all__ = [
    "quantization_faults",
    "quantization_method",
    "refuse_inexact_weights",
    "refuse_leftovers",
    "refuse_unknown_method",
]


def quantization_method(config: PretrainedConfig) -> str | None:
    """How the weights of a checkpoint are quantised, in transformers' words; ``None`` if they are not."""
    settings: Any = getattr(config, "quantization_config", None)
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else settings.quant_method
    return str(getattr(method, "value", method))


def refuse_unknown_method(config: PretrainedConfig, name: str) -> None:
    """Refuse a method that transformers would skip, reading the quantised numbers as if they were weights.

    Raises:
        UnsupportedModelError: naming the method and those that are known.
    """
    method = quantization_method(config)
    # One method goes by the names of its widths.
    known = sorted({name.removesuffix("_4bit").removesuffix("_8bit") for name in AUTO_QUANTIZATION_CONFIG_MAPPING})
    if method is not None and method not in known:
        raise UnsupportedModelError(
            f'"{name}" is quantised with "{method}", which transformers does not know; it knows {", ".join(known)}'
        )


def refuse_leftovers(name: str, method: str | None, unexpected: Collection[str]) -> None:
    """Refuse a quantised checkpoint with tensors that nothing read: its weights are then not what they seem.

    Raises:
        CheckpointError: naming one of them.
    """
    if method is not None and unexpected:
        raise CheckpointError(
            f'"{name}" is quantised with "{method}", and {len(unexpected)} of its tensors were not read, such as '
            f"{min(unexpected)}; its quantization_config does not describe it: fetch the checkpoint again"
        )


def refuse_inexact_weights(config: PretrainedConfig, name: str) -> None:
    """Refuse exact numerics on kernels of quantised weights.

    Raises:
        NumericsError: naming the method.
    """
    method = quantization_method(config)
    if method is not None:
        raise NumericsError(
            f'"{name}" is quantised with "{method}", whose kernels may follow the batch; exact numerics holds for '
            'float32 weights only: use numerics="fast" or another checkpoint'
        )


@contextmanager
def quantization_faults(name: str, method: str | None, device: torch.device) -> Iterator[None]:
    """Turn a quantiser's refusals into ours.

    Raises:
        MissingPackageError: if it needs a package that is not there.
        UnsupportedModelError: if it does not run on the device.
    """
    try:
        yield
    except PacelineError as error:
        if method is None or error.__cause__ is None:
            raise
        raise _refusal(name, method, device, error.__cause__) from error.__cause__
    except (ImportError, RuntimeError, NotImplementedError) as error:
        if method is None:
            raise
        raise _refusal(name, method, device, error) from error


def _refusal(name: str, method: str, device: torch.device, error: BaseException) -> PacelineError:
    reason = (str(error).strip() or repr(error)).splitlines()[0]
    what = f'"{name}" is quantised with "{method}"'
    if isinstance(error, ImportError):
        return MissingPackageError(f"{what}, and what loads it is not there: {reason}")
    return UnsupportedModelError(
        f'{what}, which cannot be loaded on device "{device}": {reason}; use another device or another checkpoint'
    )
