"""``paceline train eagle`` from prompts to a measured head."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from safetensors.torch import load_file

from paceline import LLM, SamplingParams
from paceline.api import PluginError
from paceline.plugin_command import run_plugin_command
from paceline.session import SessionContext
from paceline_eagle.training.command import TrainCommand
from paceline_eagle.training.corpus import recorded_prompts
from paceline_eagle.training.options import TrainOptions
from paceline_eagle.training.prompts import read_prompts, template_prompts


def run(options: TrainOptions) -> dict[str, Any]:
    TrainCommand(options, SessionContext()).run()
    return load_file(options.output / "model.safetensors")


def flags(options: TrainOptions) -> list[str]:
    given = {name: value for name, value in options.model_dump().items() if name in options.model_fields_set}
    pairs = [(name, each) for name, value in given.items() for each in (value if name == "layers" else [value])]
    return [text for name, value in pairs for text in ("--" + name.replace("_", "-"), str(value))]


def test_from_prompts_to_a_head(options: Callable[..., TrainOptions], capsys: Any, texts: list[str]) -> None:
    asked = options()
    run_plugin_command("train", "eagle", flags(asked))
    written = capsys.readouterr().err
    said = re.search(r"acceptance length ([\d.]+) on 3 held-out prompts", written)
    assert said is not None, written
    card = (asked.output / "README.md").read_text()
    assert f"| acceptance length, chain of 3, greedy | {said[1]} |" in card
    for row in ("| answers held out | 3 with ", "| answers learnt from | 9 with ", "| prompts | prompts.txt |"):
        assert row in card
    with LLM(asked.target, numerics="exact") as llm:
        assert f"| weights | `{llm.built.facts.weights_fingerprint}` |" in card
        plain = llm.generate(texts[0], SamplingParams(temperature=0.0, max_tokens=20))
    eagle = {"proposer": "eagle", "proposer_options": {"model": str(asked.output)}, "num_speculative_tokens": 3}
    with LLM(asked.target, numerics="exact", **eagle) as llm:
        drafted = llm.generate(texts[0], SamplingParams(temperature=0.0, max_tokens=20))
    assert drafted[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
    assert drafted[0].metrics.num_draft_tokens > 0


class Interrupted(Exception):
    """Where a test stops a run."""


def test_each_stage_goes_on(options: Callable[..., TrainOptions], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(options())
    again = options(output=options().output.with_name("again"))
    for stage in ("_train", "_measure"):
        with monkeypatch.context() as patch:

            def stop(*arguments: Any) -> None:
                raise Interrupted

            patch.setattr(TrainCommand, stage, stop)
            with pytest.raises(Interrupted):
                TrainCommand(again, SessionContext()).run()
    shards = {file: file.stat().st_mtime_ns for file in again.output.rglob("*.safetensors") if "corpus" in str(file)}
    found = run(again)
    assert found.keys() == whole.keys() and all(found[name].equal(whole[name]) for name in whole)
    assert shards and all(file.stat().st_mtime_ns == written for file, written in shards.items())


def test_refuses_too_few_prompts(options: Callable[..., TrainOptions], prompt_file: Path) -> None:
    prompt_file.write_text("t4 t5\nt4 t5\nt6 t7\n")
    asked = options(num_held_out=2)
    with pytest.raises(PluginError, match="there are 2 different prompts, and num_held_out is 2: none is left to"):
        run(asked)
    assert recorded_prompts(asked.output / "work" / "corpus") == set()  # nothing was asked for nothing


def test_options_are_checked() -> None:
    for wrong in ({"num_held_out": 0}, {"ttt_share": 1.5}, {"learning_rate": float("inf")}, {"unknown": 1}):
        with pytest.raises(ValidationError):
            TrainOptions(target="demo", output=Path("x"), **wrong)


def test_reads_prompts(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text('{"turns": ["One?", "And?"]}\n\n{"prompt": "Two?"}\n')
    assert read_prompts(file) == ["One?", "Two?"]
    file.write_text('{"prompt": "One\u2028line?"}\n', encoding="utf-8")
    assert read_prompts(file) == ["One\u2028line?"]
    file.write_text("One?\n\n {curly}\n")
    assert read_prompts(file) == ["One?", " {curly}"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n \n", 'holds no prompt; give JSON lines such as {"turns": ["Hello"]}, or lines of text'),
        ('{"prompt": "a"}\n{"prompt"\n', 'line 2 is no JSON (.*); give an object with "turns" or "prompt"'),
        ('{"turns": []}', 'line 1 has neither "turns" that begin with a text nor a "prompt"; give {"prompt": "Hello"}'),
        ('{"prompt": "a"}\n[1]', 'line 2 has neither "turns"'),
        ('{"prompt": 7}', 'line 1 has neither "turns"'),
        ("\xff", "cannot be read: .*; give a file of JSON lines or text"),
    ],
)
def test_names_the_line_that_is_no_prompt(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(PluginError, match=re.escape(message).replace(r"\.\*", ".*")):
        read_prompts(file)


def test_templates_depend_on_the_seed_alone() -> None:
    prompts = template_prompts(200, 3)
    assert len(set(prompts)) > 150 and prompts[:50] == template_prompts(50, 3) != template_prompts(50, 4)
    assert not any("{" in prompt for prompt in prompts)
