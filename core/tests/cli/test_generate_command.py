from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM
from paceline.config import EngineConfig

Run = Callable[..., Any]


@pytest.fixture
def generate(run: Run, alphabet: str) -> Run:
    """``(*arguments) -> result`` of ``paceline generate`` on the alphabet model."""
    return lambda *arguments, **extra: run(
        "generate", "-m", alphabet, "--max-tokens", "4", "--engine-option", "max_model_len=64", *arguments, **extra
    )


# -- texts -----------------------------------------------------------------------------------------------------------


def test_one_prompt_prints_its_text_alone(generate: Run) -> None:
    result = generate("xa")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "bcde\n", "")


def test_several_prompts_are_told_apart(generate: Run) -> None:
    assert generate("xa", "k").stdout == "> xa\nbcde\n\n> k\nlmno\n\n"


def test_standard_input_is_one_prompt(generate: Run) -> None:
    assert generate("-", input="line\nc").stdout == "defg\n"


def test_a_file_has_a_prompt_on_each_line(generate: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("ä b\n\n  \nc\n", encoding="utf-8")
    assert generate("--prompts", str(file)).stdout == "> ä b\ncdef\n\n> c\ndefg\n\n"
    assert generate("a", "--prompts", str(file)).stdout.startswith("> a\nbcde\n\n> ä b\n")


def test_chat_puts_the_prompt_into_the_template(generate: Run) -> None:
    result = generate("--chat", "--json", "hi")
    record = json.loads(result.stdout)
    assert (record["prompt"], record["text"]) == ("hi", "bcde")


def test_json_has_tokens_reason_and_every_figure(generate: Run) -> None:
    result = generate("--json", "a", "c")
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["prompt"], first["text"], first["finish_reason"]) == ("a", "bcde", "length")
    assert len(first["token_ids"]) == 4 and second["text"] == "defg"
    figures = first["metrics"]
    assert figures["num_generated_tokens"] == 4 and figures["ttft_s"] > 0 and figures["acceptance_by_position"] == []
    assert result.stderr == ""


def test_sampling_options_arrive(generate: Run) -> None:
    hot = ("--temperature", "5", "--max-tokens", "20", "--json")
    runs = [json.loads(generate(*hot, "--seed", seed, "a").stdout)["token_ids"] for seed in "112"]
    assert runs[0] == runs[1] != runs[2]
    for narrow in (("--top-k", "1"), ("--top-p", "0.0001"), ("--min-p", "1")):
        assert generate(*hot, *narrow, "--seed", "1", "a").exit_code == 0
        assert json.loads(generate(*hot, *narrow, "a").stdout)["text"] == "bcdefghijklmnopqrstu"


def configurations(monkeypatch: pytest.MonkeyPatch) -> list[EngineConfig]:
    """The configurations that an engine is asked for; none is built."""
    seen: list[EngineConfig] = []

    def start(self: LLM, config: EngineConfig) -> None:
        seen.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "_start", start)
    return seen


def test_a_proposer_is_taken_by_name_and_options(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = configurations(monkeypatch)
    run(
        *("generate", "x", "-m", "M", "--proposer", "ngram", "--num-speculative-tokens", "3", "--numerics", "exact"),
        *("--proposer-option", "max_ngram=4", "--proposer-option", "name=words here", "--proposer-option", "on=true"),
        *("--engine-option", "max_model_len=99", "--engine-option", 'revision="7"'),
    )
    expected = {
        "model": "M",
        "numerics": "exact",
        "proposer": "ngram",
        "num_speculative_tokens": 3,
        "proposer_options": {"max_ngram": 4, "name": "words here", "on": True},
        "max_model_len": 99,
        "revision": "7",
    }
    assert seen == [EngineConfig(**expected)]


def test_what_was_not_given_is_a_default(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = configurations(monkeypatch)
    run("generate", "x", "--engine-option", 'speculative_model="[ngram]"')
    assert seen == [EngineConfig(model="demo", proposer="ngram")]


def test_a_configuration_file_is_read_and_the_command_line_is_stronger(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = configurations(monkeypatch)
    file = tmp_path / "own.yaml"
    file.write_text("model: M\nengine: {numerics: exact, max_model_len: 64}\nspeculation: {proposer: ngram}\n")
    run("generate", "x", "--config", str(file), "--engine-option", "max_model_len=32")
    assert seen == [EngineConfig(model="M", numerics="exact", max_model_len=32, proposer="ngram")]
    run("generate", "x", "--config", str(file), "-m", "N", "--numerics", "fast", "--proposer", "none")
    assert seen[1:] == [EngineConfig(model="N", max_model_len=64)]


def test_a_fault_of_the_file_is_one_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("engine:\n  max_model_length: 64\n")
    result = run("generate", "x", "--config", str(file))
    assert result.exit_code == 1 and result.stdout == "" and result.stderr.count("\n") == 1
    assert result.stderr.startswith(f'PACELINE-E101: {file}:2: unknown key "engine.max_model_length" = 64; did you')


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-1", "a"], "PACELINE-E501: sampling parameter temperature=-1.0: "),
        (
            ["--engine-option", "max_model_length=9", "a"],
            'PACELINE-E101: .*"max_model_length".*did you mean "max_model_',
        ),
        (["--proposer", "nobody", "a"], 'PACELINE-E201: .*"nobody"'),
        (["--proposer-option", "k=1", "a"], "PACELINE-E101: .*need a proposer"),
        (["--num-speculative-tokens", "2", "a"], "PACELINE-E101: .*need a proposer"),
        ([""], "PACELINE-E110: .*the prompt is empty"),
        (["a" * 64], "PACELINE-E111: .*64 tokens, and max_model_len is 64"),
    ],
)
def test_errors_are_one_line_with_a_code(generate: Run, arguments: list[str], message: str) -> None:
    result = generate(*arguments)
    assert result.exit_code == 1 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert re.match(message, result.stderr)


def test_a_model_that_is_not_there(run: Run, tmp_path: Path) -> None:
    result = run("generate", "a", "-m", str(tmp_path / "nothing"))
    assert result.exit_code == 1 and result.stderr.startswith("PACELINE-E3") and result.stderr.count("\n") == 1


def test_a_model_without_a_tokenizer(run: Run, mute: str) -> None:
    result = run("generate", "a", "-m", mute, "--engine-option", "max_model_len=64")
    assert result.exit_code == 1 and "has no tokenizer" in result.stderr and result.stderr.count("\n") == 1
    result = run("generate", "--chat", "a", "-m", mute, "--engine-option", "max_model_len=64")
    assert result.exit_code == 1 and "has no chat template; give the prompt as plain text" in result.stderr


def test_a_request_that_ends_with_an_error_fails_the_command(generate: Run) -> None:
    result = generate("a", "b!", "--json")
    reasons = [json.loads(line)["finish_reason"] for line in result.stdout.splitlines()]
    assert reasons == ["length", "error"]
    assert result.exit_code == 1 and result.stderr.startswith('PACELINE-E601: request "1" ended: ')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a prompt, - for standard input, or --prompts FILE"),
        (["a", "--temprature", "1"], "No such option: --temprature"),
        (["a", "--temprature", "1"], "--temperature"),
        (["a", "--temperature", "warm"], "Invalid value for '--temperature': "),
        (["a", "--numerics", "vague"], "'vague' is not one of 'fast', 'exact'"),
        (["a", "--prompts", "/nowhere.txt"], "ile '/nowhere.txt' does not exist"),
        (["a", "--engine-option", "block_size"], '"block_size" is not of the form key=value'),
        (["a", "--engine-option", "model=x"], '"model" has an option of its own: --model'),
        (
            ["a", "--engine-option", "proposer_options={}"],
            '"proposer_options" has an option of its own: --proposer-opt',
        ),
        (["a", "--proposer", "x", "--proposer-option", "k"], '"k" is not of the form key=value'),
    ],
)
def test_wrong_usage_exits_with_2_and_says_how(run: Run, arguments: list[str], message: str) -> None:
    result = run("generate", *arguments)
    assert result.exit_code == 2 and message in result.stderr
    assert "Try 'paceline generate --help' for help" in result.stderr.replace("root generate", "paceline generate")


def test_a_file_that_is_no_text(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(b"ab\xff")
    result = run("generate", "--prompts", str(file))
    assert result.exit_code == 2 and "is not UTF-8 text (invalid start byte at byte 2)" in result.stderr


# -- interruption ----------------------------------------------------------------------------------------------------


def test_an_interrupt_while_generating_closes_the_engine(generate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    def interrupted(self: LLM, *arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "generate", interrupted)
    monkeypatch.setattr(LLM, "close", lambda self: closed.append(self))
    result = generate("a")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n") and len(closed) == 1


def _heed_interrupts() -> None:
    """A shell that runs the tests in the background has its children ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_the_process_with_130(tmp_path: Path) -> None:
    """The pipe tells when the command waits for its prompts: opening it for writing waits for the reader."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "paceline.cli", "generate", "--prompts", str(pipe)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_interrupts
    )
    with pipe.open("w"):
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout, stderr) == (130, "", "interrupted\n")
