"""What of the contract goes away: since when, with which version, and what takes its place."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

__all__ = ["DEPRECATIONS", "Deprecation", "warn_deprecated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deprecation:
    """One name of ``paceline.api``, or one argument, that goes away.

    Attributes:
        name: As callers write it: ``"KVView.report"``, or ``"KVView.report(first)"`` for an argument.
        since: The version of ``paceline.api`` in which it first warned.
        removal: The version that no longer has it; a test fails while it is still there.
        alternative: What to write instead.
    """

    name: str
    since: str
    removal: str
    alternative: str


DEPRECATIONS: tuple[Deprecation, ...] = ()


def warn_deprecated(name: str) -> None:
    """Warn the caller of what calls this, and so whoever uses the name; an argument warns only where it is given."""
    row = next(row for row in DEPRECATIONS if row.name == name)
    warnings.warn(
        f"{row.name} is deprecated since paceline.api {row.since} and goes in {row.removal}; use {row.alternative}",
        DeprecationWarning,
        stacklevel=3,
    )
