"""What transformers raises and prints while it loads, as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from paceline.model.errors import CheckpointError, RemoteCodeError, UnsupportedModelError

__all__ = ["load_faults", "quiet"]


@contextmanager
def load_faults(name: str) -> Iterator[None]:
    """Turn transformers' errors about a checkpoint into ours."""
    try:
        yield
    except SafetensorError as error:
        raise CheckpointError(f'"{name}" has a damaged safetensors file ({error}); fetch it again') from error
    except OSError as error:
        raise CheckpointError(f'"{name}" cannot be read: {_first_line(error)}') from error
    except (ValueError, KeyError) as error:
        if "trust_remote_code" in str(error):
            raise RemoteCodeError(
                f'"{name}" brings its own code, which runs only with trust_remote_code=True; read it first'
            ) from error
        raise UnsupportedModelError(f'"{name}" cannot be loaded by transformers: {_first_line(error)}') from error


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars of transformers inside the block."""
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]
