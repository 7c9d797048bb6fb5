"""The error of the configuration."""

from __future__ import annotations

from paceline.api.errors import PacelineError

__all__ = ["ConfigError"]


class ConfigError(PacelineError):
    """A value of the engine's configuration is not valid."""

    code = "PACELINE-E101"
