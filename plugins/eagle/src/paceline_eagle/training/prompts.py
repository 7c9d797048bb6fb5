"""Prompts to be answered: from a file, or made from templates."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from paceline.api import PluginError

__all__ = ["read_prompts", "template_prompts"]

_NAMES = (
    "Anna",
    "Ben",
    "Chloe",
    "David",
    "Emma",
    "Farid",
    "Grace",
    "Hugo",
    "Ines",
    "Jonas",
    "Kim",
    "Lena",
    "Mia",
    "Omar",
)
_THINGS = ("apples", "books", "marbles", "stamps", "pencils", "cookies", "stickers", "shells", "coins", "flowers")
_TEMPLATES = (
    "{a} has {m} {t}. {b} gives {a} {n} more. How many {t} does {a} have now?",
    "{a} buys {m} boxes of {t} with {n} {t} in each box and gives {k} to {b}. How many {t} are left?",
    "A shop sells {t} for ${n} each. {a} buys {m} and pays with $200. How much change does {a} get?",
    "{a} collects {n} {t} every day, and {b} collects {k} fewer. How many do they have together after {m} days?",
    "{a} and {b} share {m} bags of {n} {t} between them. {a} takes {k} more than {b}. How many does {a} take?",
    "{a} reads {n} pages on each weekday and {k} on each day of the weekend. How many pages is that in {m} weeks?",
)


def read_prompts(file: Path) -> list[str]:
    """Prompts from JSON lines with ``turns`` (the first is used) or ``prompt``, or from lines of plain text.

    A file whose first line is a JSON object is taken as JSON lines.

    Raises:
        PluginError: naming the file, the line and what is wrong with it.
    """
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # splitlines() would also split inside JSON, at U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(f'the prompts "{file}" cannot be read: {error}; give a file of JSON lines or text') from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise PluginError(f'"{file}" holds no prompt; give JSON lines such as {{"turns": ["Hello"]}}, or lines of text')
    if not numbered[0][1].lstrip().startswith("{"):
        return [line for _, line in numbered]
    return [_prompt(line, f'"{file}", line {number}') for number, line in numbered]


def _prompt(line: str, place: str) -> str:
    try:
        record: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise PluginError(f'{place} is no JSON ({error}); give an object with "turns" or "prompt"') from error
    turns = record.get("turns") if isinstance(record, dict) else None
    text = turns[0] if isinstance(turns, list) and turns else isinstance(record, dict) and record.get("prompt")
    if not isinstance(text, str) or not text.strip():
        raise PluginError(
            f'{place} has neither "turns" that begin with a text nor a "prompt"; give {{"prompt": "Hello"}}'
        )
    return text


def template_prompts(count: int, seed: int) -> list[str]:
    """``count`` short word problems; a function of its arguments alone."""
    draw = random.Random(seed)
    prompts = []
    for _ in range(count):
        a, b = draw.sample(_NAMES, 2)
        numbers = {"m": draw.randint(2, 12), "n": draw.randint(3, 40), "k": draw.randint(1, 9)}
        prompts.append(draw.choice(_TEMPLATES).format(a=a, b=b, t=draw.choice(_THINGS), **numbers))
    return prompts
