"""Every Python block of every README compiles, and runs on the demo model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN_READMES = [*sorted(ROOT.glob("plugins/*/README.md")), *sorted(ROOT.glob("contrib/*/README.md"))]
READMES = [ROOT / "README.md", ROOT / "core" / "README.md", *PLUGIN_READMES]
BLOCKS = [
    pytest.param(block, id=f"{path.parent.name}-{index}")
    for path in READMES
    for index, block in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_block_compiles(block: str) -> None:
    compile(block, "README.md", "exec")


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 3
