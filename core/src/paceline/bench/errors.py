"""Errors of benchmarks."""

from __future__ import annotations

from paceline.api.errors import PacelineError

__all__ = [
    "BenchError",
    "ContinuousBatchingError",
    "PromptFileError",
    "ServerModelError",
    "ServerOutputError",
    "ServerStatusError",
    "ServerStreamError",
    "ServerUnreachableError",
    "TooFewStepsError",
]


class PromptFileError(PacelineError):
    """A file of prompts that cannot be used."""

    code = "PACELINE-E120"


class BenchError(PacelineError):
    """A request failed in an engine under measurement, so its figures would mean nothing."""

    code = "PACELINE-E620"


class ContinuousBatchingError(PacelineError):
    """transformers' continuous batching cannot run this model on this machine."""

    code = "PACELINE-E621"


class ServerUnreachableError(PacelineError):
    """Nothing answers at a server's URL."""

    code = "PACELINE-E622"


class ServerStatusError(PacelineError):
    """A server refused a request, or answered as no OpenAI-compatible server does."""

    code = "PACELINE-E623"


class ServerModelError(PacelineError):
    """A server does not serve the model that it is asked for, or which one is meant is not clear."""

    code = "PACELINE-E624"


class ServerStreamError(PacelineError):
    """A server's answer is no stream of events, or breaks off."""

    code = "PACELINE-E625"


class ServerOutputError(PacelineError):
    """A server emitted fewer tokens than it was asked for, so its figures would not compare."""

    code = "PACELINE-E626"


class TooFewStepsError(PacelineError):
    """Requests did not decode together for as many steps as were to be measured."""

    code = "PACELINE-E627"
