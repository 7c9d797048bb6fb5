"""The plugin policy as ``paceline generate`` and ``LLM`` take it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM
from paceline.host.errors import PluginNotAllowedError, PolicyFileError

Run = Callable[..., Any]
LOADED = "plugins: eviction policy lru (paceline-core 0.1.0), speculation controller fixed (paceline-core 0.1.0)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "none.toml").write_text('mode = "allow"\n')
    return tmp_path


def test_generate_says_which_policy_is_in_force_and_what_it_let_run(run: Run, alphabet: str, folder: Path) -> None:
    result = run("generate", "-m", alphabet, "--max-tokens", "2", "--plugin-policy", "none.toml", "a")
    assert (result.exit_code, result.stdout) == (0, "bc\n")
    assert result.stderr == f"plugin policy: allow (none.toml); {LOADED}\n"


@pytest.mark.parametrize("command", [("generate", "a"), ("chat",)])
def test_a_refused_proposer_stops_the_start(run: Run, alphabet: str, folder: Path, command: tuple[str, ...]) -> None:
    (folder / "paceline-plugins.toml").write_text('mode = "allow"\n')
    result = run(*command, "-m", alphabet, "--proposer", "ngram")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert result.stderr.startswith('PACELINE-E212: plugin "ngram" ') and 'mode = "allow", and there' in result.stderr


def test_the_option_has_no_second_spelling(run: Run, alphabet: str) -> None:
    result = run("generate", "-m", alphabet, "--engine-option", "plugin_policy=x", "a")
    assert result.exit_code == 2 and '"plugin_policy" has an option of its own: --plugin-policy' in result.stderr


def test_an_engine_takes_the_policy_from_argument_variable_or_working_directory(
    alphabet: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"max_model_len": 32, "proposer": "ngram"}
    with pytest.raises(PluginNotAllowedError):
        LLM(alphabet, plugin_policy=folder / "none.toml", **options)
    with pytest.raises(PolicyFileError):
        LLM(alphabet, plugin_policy="gone.toml", **options)
    monkeypatch.setenv("PACELINE_PLUGIN_POLICY", "none.toml")
    with pytest.raises(PluginNotAllowedError):
        LLM(alphabet, **options)
    monkeypatch.delenv("PACELINE_PLUGIN_POLICY")
    (folder / "none.toml").rename(folder / "paceline-plugins.toml")
    with caplog.at_level(logging.INFO, "paceline"), LLM(alphabet, max_model_len=32) as llm:
        assert llm.built.plugin_policy == "allow (paceline-plugins.toml)"
    assert caplog.messages == [f"plugin policy: allow (paceline-plugins.toml); {LOADED}"]
