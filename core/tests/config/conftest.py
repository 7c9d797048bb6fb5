"""A working directory of one's own, with no variable of the caller's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.config.errors import ConfigError
from paceline.config.sources import Resolved, resolve


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PACELINE_")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def resolved(folder: Path) -> Callable[..., Resolved]:
    """``(text of paceline.yaml, variables, **command line) -> Resolved``."""

    def call(text: str = "", environ: dict[str, str] | None = None, **command_line: Any) -> Resolved:
        (folder / "paceline.yaml").write_text(text, encoding="utf-8")
        return resolve(command_line, None, environ or {})

    return call


@pytest.fixture
def refusal(resolved: Callable[..., Resolved]) -> Callable[..., str]:
    """The message with which the same is refused."""

    def call(*args: Any, **kwargs: Any) -> str:
        with pytest.raises(ConfigError) as error:
            resolved(*args, **kwargs)
        assert str(error.value).startswith("PACELINE-E101: ")
        return error.value.message

    return call
