"""Typed errors with stable codes. A message names the culprit, the value, the bound and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["PacelineError", "PluginError", "did_you_mean"]


class PacelineError(Exception):
    """A fault of a user, a plugin or a file.

    Attributes:
        code: Stable identifier such as ``PACELINE-E101``; subclasses set it.
    """

    code = "PACELINE-E000"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class PluginError(PacelineError):
    """Raised by a plugin for a fault of its own options, files or state.

    The host adds the plugin's name, version and hook before the user sees it.
    """

    code = "PACELINE-E200"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``'; did you mean "x"?'`` for the nearest known name, else the list of known names."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{near[0]}"?'
    return f"; known: {', '.join(names)}" if names else ""
