"""Errors of benchmarks."""

from __future__ import annotations

from paceline.api.errors import PacelineError

__all__ = ["BenchError", "PromptFileError"]


class PromptFileError(PacelineError):
    """A file of prompts that cannot be used."""

    code = "PACELINE-E120"


class BenchError(PacelineError):
    """A request failed in an engine under measurement, so its figures would mean nothing."""

    code = "PACELINE-E620"
