"""A command that prints, and what it becomes by one fault each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from paceline.api import Command


class Printing(Command):
    """No fault: prints a line."""

    num_runs = 0

    def __init__(self, context: Any) -> None:
        self.context = context

    def run(self) -> None:
        print("trained")


class OnceOnly(Printing):
    """cannot run a second time in a process"""

    def run(self) -> None:
        assert type(self).num_runs == 0
        type(self).num_runs += 1


class NeedsFile(Printing):
    """reads a file that is not there"""

    def run(self) -> None:
        Path("no such file").read_text()


class Exits(Printing):
    """ends the process instead of returning"""

    def run(self) -> None:
        raise SystemExit(0)


class OwnHelp(Printing):
    """has an option "help", which every command has"""

    class Options(BaseModel):
        help: str = ""


HONEST = Printing
CAUGHT_BY = {
    OnceOnly: "test_it_runs",
    NeedsFile: "test_it_runs",
    Exits: "test_it_runs",
    OwnHelp: "test_help_ends_well",
}
