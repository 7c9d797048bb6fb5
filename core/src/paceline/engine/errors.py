"""Errors of requests and of the engine."""

from __future__ import annotations

from paceline.api import PacelineError

__all__ = ["EngineError", "InvalidLogitsError", "RequestError", "RequestTooLongError"]


class RequestError(PacelineError):
    """A request that cannot be served as it was given."""

    code = "PACELINE-E110"


class RequestTooLongError(RequestError):
    """A request that can never fit into the model or into the KV cache."""

    code = "PACELINE-E111"


class InvalidLogitsError(PacelineError):
    """The target gave NaN, or no finite score, for a row; the request ends."""

    code = "PACELINE-E601"


class EngineError(PacelineError):
    """The engine cannot be built or run as configured."""

    code = "PACELINE-E602"
