"""Prompts by kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.bench.errors import PromptFileError
from paceline.bench.prompts import BenchPrompt, built_in_prompts, by_kind, mixed_texts, read_prompts

PROMPTS = [BenchPrompt("a", "1"), BenchPrompt("b", "2"), BenchPrompt("a", "3"), BenchPrompt("a", "4")]


def encode(text: str) -> list[int]:
    return [int(text)]


def test_built_in_kinds_have_as_many_prompts_each() -> None:
    kinds = [prompt.kind for prompt in built_in_prompts()]
    assert {kind: kinds.count(kind) for kind in kinds} == {"chat": 4, "code editing": 4, "JSON": 4, "summary": 4}


def test_the_first_turn_and_the_category_are_read(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"category": "writing", "turns": ["one", "two"], "id": 81}\n\n{"turns": ["three"]}\n')
    assert read_prompts(file) == [BenchPrompt("writing", "one"), BenchPrompt("other", "three")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"turns": ["a"]}\nnone', r"PACELINE-E120: .*prompts.jsonl\", line 2 is no JSON"),
        ('{"turns": []}', r'line 1 has no "turns" that begin with a text; give {"turns": \["Hello"\]}'),
        ('{"turns": [3]}', 'has no "turns"'),
        ('["a"]', 'has no "turns"'),
        ('{"turns": ["a"], "category": 3}', 'has the "category" 3; give a text'),
        ("\n", "holds no prompt; give JSON lines"),
    ],
)
def test_a_bad_file_names_line_and_remedy(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    with pytest.raises(PromptFileError, match=message):
        read_prompts(file)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PromptFileError, match="cannot be read"):
        read_prompts(file)


def test_kinds_stay_apart() -> None:
    assert by_kind(PROMPTS, encode, most_per_kind=None, mixed=False) == {"a": [[1], [3], [4]], "b": [[2]]}
    assert by_kind(PROMPTS, encode, most_per_kind=2, mixed=False) == {"a": [[1], [3]], "b": [[2]]}


def test_mixed_prompts_alternate_between_kinds() -> None:
    assert by_kind(PROMPTS, encode, most_per_kind=2, mixed=True) == {"mixed": [[1], [2], [3]]}
    assert mixed_texts(PROMPTS) == ["1", "2", "3", "4"]


def test_other_line_separators_end_no_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"turns": ["one\u2028two"]}\n{"turns": ["three"]}\n', encoding="utf-8")
    assert [prompt.text for prompt in read_prompts(file)] == ["one\u2028two", "three"]
