"""What users install: an editable checkout hides files that a wheel lacks."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest


def test_wheels_hold_every_source_file_and_nothing_else(code_packages, wheels: dict[str, Path]) -> None:
    for package in code_packages:
        names = zipfile.ZipFile(wheels[package.name]).namelist()
        held = {name for name in names if ".dist-info/" not in name}
        assert held == {path.as_posix() for path in package.sources}, package.name


def test_wheels_are_typed(code_packages, target: Path) -> None:
    for package in code_packages:
        (top,) = {path.parts[0] for path in package.sources}
        assert (target / top / "py.typed").is_file(), package.name


@pytest.mark.parametrize("module", ["paceline.api", "paceline_ngram", "paceline_draft_model"])
def test_modules_come_from_the_wheels(python_from_wheels: Callable[..., str], target: Path, module: str) -> None:
    origin = python_from_wheels("-c", f"import {module}; print({module}.__file__)").strip()
    assert Path(origin).is_relative_to(target)


def test_plugins_are_listed(python_from_wheels: Callable[..., str]) -> None:
    rows = json.loads(python_from_wheels("-m", "paceline.cli", "plugins", "list", "--json"))
    assert {row["name"] for row in rows} >= {"draft_model", "fixed", "lru", "ngram"}


GENERATE = """
import paceline, paceline_draft_model, paceline_ngram
from paceline import LLM, SamplingParams

for module in (paceline, paceline_draft_model, paceline_ngram):
    assert module.__file__.startswith({target!r}), module.__file__
params = SamplingParams(temperature=0.0, max_tokens=6)
ways = ({{}}, {{"proposer": "ngram"}}, {{"proposer": "draft_model", "proposer_options": {{"model": "target"}}}})
for way in ways:
    with LLM({model!r}, numerics="exact", max_model_len=64, **way) as llm:
        print(llm.generate({{"prompt_token_ids": [7, 8, 9] * 4}}, params)[0].outputs[0].token_ids)
"""


def test_the_wheels_generate(
    python_from_wheels: Callable[..., str], target: Path, tiny: Callable[..., str], reference: Callable[..., list[int]]
) -> None:
    lines = python_from_wheels("-c", GENERATE.format(target=str(target), model=tiny())).splitlines()
    assert lines == [str(reference(tiny(), [7, 8, 9] * 4, 6))] * 3
