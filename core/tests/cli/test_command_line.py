from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import paceline
from paceline import demo
from paceline.api import API_VERSION
from paceline.cli import app

Run = Callable[..., Any]


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, with its path."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))


def test_there_are_the_commands_of_the_readme() -> None:
    assert {("generate",), ("demo",), ("plugins", "list"), ("plugins", "show")} <= ALL.keys()


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_tells_what_each_command_and_option_does(run: Run, path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0 and result.stderr == ""
    assert ALL[path].help and ALL[path].help.splitlines()[0] in result.stdout
    for parameter in ALL[path].params:
        assert getattr(parameter, "help", None), f"{parameter.name} has no help"
        named = [name for name in parameter.opts if name.startswith("--")]
        assert all(name in result.stdout for name in named)


def test_help_of_generate_has_examples_that_parse(run: Run) -> None:
    lines = [line.strip() for line in run("generate", "--help").stdout.splitlines()]
    examples = [line for line in lines if line.startswith("paceline generate")]
    assert len(examples) == 4
    options = {name for parameter in ALL["generate",].params for name in parameter.opts}
    used = {word for example in examples for word in example.split() if word.startswith("-") and word != "-"}
    assert used <= options


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    result = run()
    assert "generate" in result.output and "plugins" in result.output


def test_version(run: Run) -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"paceline {paceline.__version__} (paceline.api {API_VERSION})\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generat"], "No such command 'generat'. Did you mean 'generate'?"),
        (["--versio"], "No such option: --versio"),
        (["--versio"], "--version"),
        (["demo", "--max-tokens", "0"], "Invalid value for '--max-tokens': "),
        (["plugins", "show"], "Missing argument 'NAME'"),
    ],
)
def test_wrong_usage_exits_with_2(run: Run, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2 and message.lower() in result.stderr.lower()


PROBE = """
import sys
from paceline.cli import app
try:
    app(["plugins", "list", "--json"])
finally:
    print(*sorted(m for m in sys.modules if m.split(".")[0] in ("torch", "transformers")), file=sys.stderr)
"""


def test_listing_plugins_imports_no_torch_and_starts_quickly(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    listed = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (listed.returncode, listed.stderr) == (0, "\n")
    assert {"fixed", "lru"} <= {row["name"] for row in json.loads(listed.stdout)}
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5, "seconds of processor time"


@pytest.mark.parametrize(("same", "exit_code"), [(True, 0), (False, 1)])
def test_demo_fails_when_the_tokens_differ(
    run: Run, monkeypatch: pytest.MonkeyPatch, same: bool, exit_code: int
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(demo, "run_demo", lambda **options: seen.update(options) or same)
    assert run("demo", "--max-tokens", "7", "--numerics", "fast").exit_code == exit_code
    assert seen == {"max_tokens": 7, "numerics": "fast"}
