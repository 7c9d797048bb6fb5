"""What a command is held to: flags from its options, and runs that end."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from paceline.plugin_command import run_plugin_command
from paceline.testing.contract import Contract

__all__ = ["CommandContract"]


class CommandContract(Contract):
    """Tests of a command.

    Attributes:
        arguments: A command line with which it can run; ``{model}`` in it is the folder of the tests' model. Without it
            nothing is run.
    """

    kind = "command"
    arguments: ClassVar[Sequence[str] | None] = None
    settings = (*Contract.settings, "arguments")

    def choice(self) -> dict[str, Any]:
        """Engines do not run commands."""
        return {}

    def call(self, *arguments: str) -> str:
        """Run ``paceline NAME PLUGIN ARGUMENTS``; what it printed."""
        plugin, _, name = self.plugin.partition(":")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            run_plugin_command(name or plugin, plugin, arguments)
        return printed.getvalue()

    def test_help_ends_well(self) -> None:
        """``--help`` lists the flags, and runs nothing."""
        with pytest.raises(SystemExit) as ended:
            self.call("--help")
        assert ended.value.code == 0, f"--help ends with status {ended.value.code}"

    def test_it_runs(self) -> None:
        """It runs to its end, twice."""
        if self.arguments is None:
            pytest.skip('give "arguments": a command line with which it can run, such as ["--target", "{model}"]')
        for _ in range(2):
            self.call(*(argument.replace("{model}", self.model()) for argument in self.arguments))
