"""Every block of the guides to the plugin policy runs, in order, and prints what the guide says.

A block with ``# file: NAME`` in its first line is a file. In a ``console`` block, lines after ``$ COMMAND`` are its
output, in which ``...`` stands for anything. ``pip`` works on a folder of installed distributions, with a wheel that is
built from this repository, or with one made up for a package that there is not.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli import app
from paceline.host.discovery import InstalledPlugin, discover

ROOT = Path(__file__).parents[2]
GUIDES = ["pinning_plugins.md", "refused_plugins.md"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SITE = "site-packages"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed ``paceline-ngram``."""
    folder = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    source = str(ROOT / "plugins" / "ngram")
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", str(folder), source], check=True)
    return folder


def is_ngram(plugin: InstalledPlugin) -> bool:
    """Whether it is the plugin of the guides, which the environment of these tests has as well."""
    return plugin.distribution == "paceline-ngram"


def forget_plugin() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "paceline_ngram"]:
        del sys.modules[name]


class Shell:
    """The few commands that the guides use."""

    def __init__(self, installed: Path, site: Path) -> None:
        self.installed = installed
        self.site = site

    def run(self, command: str) -> str:
        words = shlex.split(command)
        if words[0] == "paceline":
            result = CliRunner().invoke(app, words[1:])
            forget_plugin()  # each command is a process of its own
            return result.stdout + result.stderr
        if words[0] == "pip":
            self._pip(words[1], words[-1].replace("-", "_"))
            return ""
        return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout

    def _pip(self, verb: str, package: str) -> None:
        for path in self.site.glob(f"{package}*"):
            shutil.rmtree(path)
        if verb == "uninstall":
            return
        if package != "paceline_ngram":
            info = self.site / f"{package}-9.9.dist-info"
            info.mkdir()
            (info / "entry_points.txt").write_text(f"[paceline.plugins]\nngram = {package}\n")
            return
        shutil.copytree(self.installed, self.site, dirs_exist_ok=True)


@pytest.fixture
def shell(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """An empty working directory, with ``site-packages`` in it on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.delenv("PACELINE_PLUGIN_POLICY", raising=False)
    (tmp_path / SITE).mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / SITE))

    here = str((tmp_path / SITE).resolve())

    def discover_here(search_path: Sequence[str] | None = None) -> tuple[InstalledPlugin, ...]:
        found = discover(search_path)
        return tuple(plugin for plugin in found if plugin.location.startswith(here) or not is_ngram(plugin))

    for module in ("host.commands", "host.loading", "config.plugin_commands"):
        monkeypatch.setattr(f"paceline.{module}.discover", discover_here)
    loaded = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "paceline_ngram"}
    forget_plugin()
    yield Shell(installed, tmp_path / SITE)
    forget_plugin()
    sys.modules.update(loaded)


def run_console(shell: Shell, block: str) -> None:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        printed = shell.run(command)
        if expected:
            pattern = ".*".join(re.escape(text) for text in in_one_width(expected).split("..."))
            assert re.fullmatch(pattern, in_one_width(printed), re.DOTALL), f"$ {command}\n{printed}\n--\n{expected}"


def in_one_width(text: str) -> str:
    """Columns are as wide as what is in them."""
    return re.sub(r" +", " ", text).rstrip("\n")


def run_python(block: str, model: str) -> None:
    """With a tiny model in place of the real one."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(block.replace('"demo"', repr(model)), "guide", "exec"), {"__name__": "__main__"})
    assert printed.getvalue().strip()


@pytest.mark.parametrize("guide", GUIDES)
def test_every_block_runs(guide: str, shell: Shell, tiny: Callable[..., str]) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / guide).read_text(encoding="utf-8"))
    assert len(blocks) >= 8
    for language, block in blocks:
        named = re.match(r"# file: (\S+)\n", block)
        if named is not None:
            Path(named[1]).write_text(block, encoding="utf-8")
        elif language == "console":
            run_console(shell, block)
        else:
            assert language == "python", f"a block of {guide} is neither a file nor run: {block}"
            run_python(block, tiny())


def test_the_guide_has_every_code() -> None:
    from paceline.host.errors import PluginRefusedError, PolicyFileError

    text = (ROOT / "docs" / "refused_plugins.md").read_text(encoding="utf-8")
    for error in (PolicyFileError, *PluginRefusedError.__subclasses__()):
        assert f"\n| {error.code} | " in text
