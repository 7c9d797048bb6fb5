"""What becomes of another engine's argument: the kinds of rows of the table in ``arguments``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from paceline.config.errors import ConfigError

__all__ = ["Argument", "Effect", "accepted", "honoured", "refused", "without_inert"]


class Effect(StrEnum):
    """What an argument does here."""

    HONOURED = "honoured"
    ACCEPTED = "accepted without effect"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Argument:
    """One row.

    Attributes:
        name: The argument's name in Python.
        effect: What it does here.
        note: What it is mapped to, or why it has no effect, or why it is refused and what to do instead.
        inert: The values that ask for nothing Paceline lacks, so that they may be given; ``None`` = every value.
            Leaving an argument at Python's ``None`` always asks for nothing.
    """

    name: str
    effect: Effect
    note: str
    inert: tuple[Any, ...] | None = ()

    def lets(self, value: object) -> bool:
        """Whether the value may be given."""
        if self.inert is None or value is None:
            return True
        return any(_same(value, inert) for inert in self.inert)

    def refusal(self, label: str, value: object) -> str:
        """The message for a value that may not be given."""
        passing = [repr(inert) for inert in self.inert or ()]
        remedy = f"; leave it out or give {' or '.join(passing)}" if passing else "; leave it out"
        shown = "(not shown)" if label.endswith("token") else f"{value!r:.80}"
        return f'option "{label}" = {shown} is refused: {self.note}{remedy}'


def _same(value: object, inert: object) -> bool:
    return isinstance(value, bool) == isinstance(inert, bool) and value == inert


def honoured(name: str, note: str) -> Argument:
    """An argument that does what it does elsewhere."""
    return Argument(name, Effect.HONOURED, note)


def accepted(name: str, note: str, *inert: object) -> Argument:
    """An argument without effect: with any value, or with the values given only."""
    return Argument(name, Effect.ACCEPTED, note, inert or None)


def refused(name: str, note: str, *inert: object) -> Argument:
    """An argument for what Paceline does not do; the values given ask for nothing and pass."""
    return Argument(name, Effect.REFUSED, note, inert)


def without_inert(values: Mapping[str, Any], rows: Iterable[Argument], prefix: str = "") -> dict[str, Any]:
    """The values without those that ask for nothing.

    Raises:
        ConfigError: for every value that is refused, with the reason.
    """
    inactive = {row.name: row for row in rows if row.effect is not Effect.HONOURED}
    faults = [
        inactive[name].refusal(prefix + name, value)
        for name, value in values.items()
        if name in inactive and not inactive[name].lets(value)
    ]
    if faults:
        raise ConfigError(f"engine configuration: {'; '.join(faults)}")
    return {name: value for name, value in values.items() if name not in inactive}
