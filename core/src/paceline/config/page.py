"""The table of arguments as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.config.argument import Argument, Effect
from paceline.config.arguments import ARGUMENTS, SPECULATIVE_KEYS

__all__ = ["as_markdown"]

_WHAT_IT_IS = {Effect.HONOURED: "", Effect.ACCEPTED: "any", Effect.REFUSED: "none"}


def as_markdown() -> str:
    """The sections of ``docs/engine_arguments.md`` that are printed from the data."""
    sections = [_section(title, rows) for title, rows in ARGUMENTS.items()]
    return "\n".join([*sections, _section("Keys of `speculative_config`", SPECULATIVE_KEYS)])


def _section(title: str, rows: Iterable[Argument]) -> str:
    head = f"### {title}\n\n| argument | effect | values that pass | what it is, or why |\n| --- | --- | --- | --- |\n"
    return head + "".join(_line(row) for row in rows)


def _line(row: Argument) -> str:
    passing = ", ".join(f"`{value!r}`" for value in row.inert or ()) or _WHAT_IT_IS[row.effect]
    return f"| `{row.name}` | {row.effect} | {passing} | {row.note} |\n"
