"""The guides to writing plugins, from an empty folder to generation: every block runs, and prints what it says.

A block with ``# file: NAME`` in its first line is a file. In a ``console`` block, lines after ``$ COMMAND`` are its
output. A ``text`` block is what the ``python`` block before it prints. ``...`` stands for anything.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = {
    "writing_a_controller.md": "following",
    "writing_a_proposer.md": "bigram",
    "writing_an_eviction_policy.md": "frequent",
    "writing_an_identity_key.md": "tenant",
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Desk:
    """An empty working directory, and what a plugin's author does in it."""

    def __init__(self, folder: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.model = model
        self.path = monkeypatch
        self.installed: list[str] = []
        self.printed = ""

    def do(self, language: str, block: str) -> None:
        named = re.match(r"# file: (\S+)\n", block)
        if named is not None:
            path = self.folder / named[1]
            assert path.is_file(), f"{named[1]} is not a file of the package that was made"
            path.write_text(block, encoding="utf-8")
        elif language == "console":
            self._type(block)
        elif language == "text":
            self._compare(block, self.printed, "the block before")
        else:
            assert language == "python", f"a block is neither a file nor run: {block}"
            self._run(block)

    def _type(self, block: str) -> None:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            words = shlex.split(command)
            if words[:3] == ["pip", "install", "-e"]:
                self._install(self.folder / words[3])
            else:
                self._compare(expected, self._command(words), command)

    def _install(self, package: Path) -> None:
        """As ``pip install -e``: metadata on the path, and the sources where they are."""
        project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        info = self.folder / "site-packages" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
        )
        points = project["entry-points"]["paceline.plugins"].items()
        lines = ["[paceline.plugins]", *(f"{name} = {value}" for name, value in points)]
        (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        for path in (info.parent, package / "src"):
            self.installed.append(str(path))
            self.path.syspath_prepend(str(path))

    def _command(self, words: list[str]) -> str:
        module = {"paceline": "paceline.cli", "pytest": "pytest"}[words[0]]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(self.installed), "COLUMNS": "400"}
        done = subprocess.run(
            [sys.executable, "-m", module, *words[1:]],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{words}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def _run(self, block: str) -> None:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(block.replace('"demo"', repr(self.model)), "guide", "exec"), {"__name__": "__main__"})
        self.printed = printed.getvalue()
        assert self.printed.strip()

    def _compare(self, expected: str, printed: str, what: str) -> None:
        pattern = ".*".join(re.escape(text) for text in in_one_width(expected).split("..."))
        assert re.fullmatch(pattern, in_one_width(printed), re.DOTALL), f"{what} printed\n{printed}\nnot\n{expected}"


def in_one_width(text: str) -> str:
    """Columns are as wide as what is in them."""
    return re.sub(r" +", " ", text).rstrip("\n")


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Callable[..., str], worded: Callable[[str], str]
) -> Iterator[Desk]:
    """With a tiny model in place of the real one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PACELINE_PLUGIN_POLICY", raising=False)
    before = set(sys.modules)
    yield Desk(tmp_path, worded(tiny()), monkeypatch)
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in GUIDES.values():
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_every_block_runs_with_the_real_model(guide: str, desk: Desk) -> None:
    desk.model = "demo"
    do_every_block(guide, desk)


@pytest.mark.parametrize("guide", GUIDES)
def test_every_block_runs(guide: str, desk: Desk) -> None:
    do_every_block(guide, desk)


def do_every_block(guide: str, desk: Desk) -> None:
    blocks = BLOCK.findall((DOCS / guide).read_text(encoding="utf-8"))
    assert len(blocks) >= 5
    for language, block in blocks:
        desk.do(language, block)


def test_what_a_block_does_not_print_is_a_failure(desk: Desk) -> None:
    desk.do("python", "print('found', 1 + 1, 'of 3')\n")
    desk.do("text", "found 2 of ...\n")
    with pytest.raises(AssertionError, match=r"the block before printed\s+found 2 of 3"):
        desk.do("text", "found 3 of ...\n")


def test_a_file_that_the_package_has_not_is_a_failure(desk: Desk) -> None:
    with pytest.raises(AssertionError, match=r"idea/plugin\.py is not a file of the package"):
        desk.do("python", "# file: idea/plugin.py\n")
