"""Commands that plugins bring: flags from the model of their options, and an engine for them to use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.api import PluginError
from paceline.host.errors import PluginNotFoundError, PluginOptionsError
from paceline.plugin_command import run_plugin_command
from paceline.sampling.noise import derive_seed

pytestmark = pytest.mark.usefixtures("test_plugins")


@pytest.fixture
def trained(tiny: Callable[..., str], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs ``paceline train engine_probes`` with these arguments and gives what it wrote."""

    def run(*arguments: str) -> dict[str, Any]:
        output = tmp_path / "found.json"
        run_plugin_command("train", "engine_probes", ["--target", tiny(), "--output", str(output), *arguments])
        found: dict[str, Any] = json.loads(output.read_text())
        return found

    return run


def test_flags_become_options(trained: Callable[..., dict[str, Any]]) -> None:
    options = trained("--num-rounds", "3", "--shape", "tree", "--no-keep", "--layers", "1", "--layers", "0")["options"]
    assert {name: options[name] for name in ("num_rounds", "shape", "keep", "layers", "note")} == {
        "num_rounds": 3,
        "shape": "tree",
        "keep": False,
        "layers": [1, 0],
        "note": None,
    }


def test_what_is_left_out_is_the_default(trained: Callable[..., dict[str, Any]]) -> None:
    options = trained()["options"]
    assert (options["num_rounds"], options["shape"], options["keep"], options["layers"]) == (2, "chain", True, [])


def test_a_session_is_an_engine(trained: Callable[..., dict[str, Any]], tiny: Callable[..., str]) -> None:
    found = trained()
    params = [SamplingParams(temperature=1.0, seed=derive_seed(7, index), max_tokens=5) for index in range(2)]
    with LLM(tiny(), numerics="exact", max_model_len=64) as llm:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in ([1, 2], [3])], params, use_tqdm=False)
    assert found["tokens"] == [output.outputs[0].token_ids for output in outputs]
    assert found["ended"] == [[index, tokens] for index, tokens in enumerate(found["tokens"])]
    assert (found["layers"], found["logits"], found["norm"]) == (2, [4, 512], [1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: --target, --output"),
        (["--target", "x", "--output", "y", "--rounds", "3"], "unrecognized arguments: --rounds"),
        (["--target", "x", "--output", "y", "--shape", "bush"], "argument --shape: invalid choice: 'bush'"),
    ],
)
def test_flags_that_cannot_be_are_usage_errors(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run_plugin_command("train", "engine_probes", arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_values_are_checked_by_the_model(trained: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(PluginOptionsError) as caught:
        trained("--num-rounds", "0")
    assert 'command "train": option "num_rounds" = \'0\': Input should be greater than or equal to 1' in str(
        caught.value
    )


def test_help_tells_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_plugin_command("train", "engine_probes", ["--help"])
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("usage: paceline train engine_probes [-h] --target VALUE --output VALUE")
    for text in (
        "Model to train for. Required.",
        "How often, up to 100%. Default: 2.",
        "--shape chain|tree",
        "--no-keep",
    ):
        assert text in shown


def test_a_fault_of_the_run_names_the_plugin(trained: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(PluginError) as caught:
        trained("--num-rounds", "13")
    assert 'plugin "engine_probes" 0.3' in str(caught.value) and "run: 13 rounds bring bad luck" in str(caught.value)


def test_a_plugin_without_the_command_is_refused() -> None:
    with pytest.raises(PluginNotFoundError, match=r'declares no command "teach"; it declares: .*command "engine_pro'):
        run_plugin_command("teach", "engine_probes", [])
