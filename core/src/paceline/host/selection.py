"""What a configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.host.names import canonical_name

__all__ = ["Address", "Selection"]


@dataclass(frozen=True, slots=True)
class Address:
    """A plugin's name taken apart: ``[distribution/]entry_point[:spec]``.

    Attributes:
        distribution: Canonical name of the distribution, ``""`` for any.
        entry_point: Name of the entry point.
        spec: Name of the spec; the entry point's own unless given.
    """

    distribution: str
    entry_point: str
    spec: str

    @classmethod
    def parse(cls, name: str) -> Address:
        """Take ``name`` apart."""
        distribution, slash, rest = name.rpartition("/")
        entry_point, _, spec = rest.partition(":")
        return cls(canonical_name(distribution) if slash else "", entry_point, spec or entry_point)


@dataclass(frozen=True, slots=True)
class Selection:
    """One plugin that the configuration names.

    Attributes:
        kind: The name of a ``Kind``, such as ``proposer``.
        name: ``entry_point``, ``entry_point:spec`` where a plugin declares several, and with
            ``distribution/`` before it where several distributions use one name.
        options: The user's options for it, not yet validated.
    """

    kind: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def address(self) -> Address:
        """The name taken apart."""
        return Address.parse(self.name)
