"""What is compared, as the command line says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.config.command_line import key_values

__all__ = ["EngineChoice", "parse_batches", "parse_proposer", "parse_proposers", "parse_variants"]


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine under measurement that differs from the plain one.

    Attributes:
        label: What it is called in the report.
        fields: Fields of the engine's configuration.
    """

    label: str
    fields: dict[str, Any] = field(default_factory=dict)


def parse_proposer(text: str) -> EngineChoice:
    """``NAME key=value ...``: ``num_speculative_tokens`` is the engine's, all other keys are the proposer's options.

    Raises:
        ValueError: saying what is wrong with the text.
    """
    name, *pairs = text.split()
    options = key_values(pairs)
    fields: dict[str, Any] = {"proposer": name}
    if "num_speculative_tokens" in options:
        fields["num_speculative_tokens"] = options.pop("num_speculative_tokens")
    return EngineChoice(" ".join([name, *pairs]), fields | {"proposer_options": options})


def parse_proposers(texts: Sequence[str]) -> list[EngineChoice]:
    """Each text as a proposer.

    Raises:
        ValueError: if one is malformed, empty or given twice.
    """
    if any(not text.strip() for text in texts):
        raise ValueError("a proposer is empty; give NAME key=value ...")
    choices = [parse_proposer(text) for text in texts]
    labels = [choice.label for choice in choices]
    repeated = next((label for label in labels if labels.count(label) > 1), None)
    if repeated is not None:
        raise ValueError(f'"{repeated}" is given twice; name each choice once')
    return choices


def parse_variants(texts: Sequence[str]) -> list[EngineChoice]:
    """Each text, ``key=value ...``, as an engine whose configuration has these fields.

    Raises:
        ValueError: if one is malformed or empty.
    """
    if any(not text.strip() for text in texts):
        raise ValueError("a variant is empty; give key=value ...")
    return [EngineChoice(text, key_values(text.split())) for text in texts]


def parse_batches(text: str) -> list[int]:
    """``1,4,16`` as ascending, distinct numbers.

    Raises:
        ValueError: naming the part that is no number of requests.
    """
    parts = [part.strip() for part in text.split(",")]
    bad = next((part for part in parts if not part.isdecimal() or int(part) < 1), None)
    if bad is not None:
        raise ValueError(f'"{bad}" is no number of concurrent requests; give numbers from 1 such as 1,4,16')
    return sorted({int(part) for part in parts})
