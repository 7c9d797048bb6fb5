"""Errors of loading and checking a model."""

from __future__ import annotations

from paceline.api.errors import PacelineError

__all__ = [
    "CheckpointError",
    "DeviceError",
    "LoadCheckError",
    "MissingPackageError",
    "ModelNotFoundError",
    "NotEnoughMemoryError",
    "RemoteCodeError",
    "UnsupportedModelError",
]


class ModelNotFoundError(PacelineError):
    """There is no such directory, file or hub repository, or it holds no model."""

    code = "PACELINE-E301"


class UnsupportedModelError(PacelineError):
    """The architecture or a setting of it cannot be served."""

    code = "PACELINE-E302"


class MissingPackageError(PacelineError):
    """Loading needs a package that is not installed."""

    code = "PACELINE-E303"


class LoadCheckError(PacelineError):
    """The model's logits differ from its own forward, or depend on batch-mates."""

    code = "PACELINE-E304"


class CheckpointError(PacelineError):
    """The checkpoint is damaged or incomplete."""

    code = "PACELINE-E305"


class DeviceError(PacelineError):
    """The device or dtype asked for is unknown or not there."""

    code = "PACELINE-E306"


class RemoteCodeError(PacelineError):
    """The checkpoint brings its own code, and running it was not allowed."""

    code = "PACELINE-E307"


class NotEnoughMemoryError(PacelineError):
    """The KV cache does not fit."""

    code = "PACELINE-E308"
