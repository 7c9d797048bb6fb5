"""Prompts by kind: from a file, or the built-in set."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.bench.builtin import BUILT_IN
from paceline.bench.errors import PromptFileError

__all__ = ["MIXED", "BenchPrompt", "built_in_prompts", "by_kind", "mixed_texts", "read_prompts", "spread_over_kinds"]

NO_KIND = "other"
MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """The user's first turn of a conversation.

    Attributes:
        kind: What it asks for; kinds are reported apart.
        text: The turn.
    """

    kind: str
    text: str


def built_in_prompts() -> list[BenchPrompt]:
    """A small set of four kinds: chat, code editing, JSON, summary."""
    return [BenchPrompt(kind, text) for kind, texts in BUILT_IN.items() for text in texts]


def read_prompts(file: Path) -> list[BenchPrompt]:
    """Prompts from JSON lines with ``turns`` (the first is used) and optionally ``category``, the kind.

    Raises:
        PromptFileError: naming the file, the line and what is wrong with it.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # JSON may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise PromptFileError(f'"{file}" cannot be read: {error}') from error
    prompts = [_prompt(line, f'"{file}", line {number}') for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise PromptFileError(f'"{file}" holds no prompt; give JSON lines such as {{"turns": ["Hello"]}}')
    return prompts


def _prompt(line: str, place: str) -> BenchPrompt:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptFileError(f'{place} is no JSON ({error}); give an object with "turns"') from error
    turns: Any = record.get("turns") if isinstance(record, dict) else None
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        raise PromptFileError(f'{place} has no "turns" that begin with a text; give {{"turns": ["Hello"]}}')
    kind = record.get("category", NO_KIND)
    if not isinstance(kind, str):
        raise PromptFileError(f'{place} has the "category" {kind!r}; give a text')
    return BenchPrompt(kind, turns[0])


def by_kind(
    prompts: Sequence[BenchPrompt], encode: Callable[[str], list[int]], *, most_per_kind: int | None, mixed: bool
) -> dict[str, list[list[int]]]:
    """``kind -> token ids of its prompts``, in the order of first appearance.

    Args:
        prompts: All prompts.
        encode: Text to token ids.
        most_per_kind: Take only the first so many of each kind.
        mixed: Report all as one kind, in the order that ``spread_over_kinds`` gives.
    """
    texts = {kind: own[:most_per_kind] for kind, own in _texts_by_kind(prompts).items()}
    if mixed:
        texts = {MIXED: spread_over_kinds(list(texts.values()))}
    return {kind: [encode(text) for text in own] for kind, own in texts.items()}


def mixed_texts(prompts: Sequence[BenchPrompt]) -> list[str]:
    """All texts in the order that ``spread_over_kinds`` gives."""
    return spread_over_kinds(list(_texts_by_kind(prompts).values()))


def _texts_by_kind(prompts: Sequence[BenchPrompt]) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for prompt in prompts:
        texts.setdefault(prompt.kind, []).append(prompt.text)
    return texts


def spread_over_kinds(groups: Sequence[Sequence[str]]) -> list[str]:
    """The first of each group, then the second of each, and so on: any run of them mixes the kinds."""
    longest = max(map(len, groups))
    return [group[index] for index in range(longest) for group in groups if index < len(group)]
