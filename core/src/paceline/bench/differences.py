"""Where two outputs part, and how near the best two scores were there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

__all__ = ["Difference", "TopTwo", "first_difference", "locate", "top_two"]


@dataclass(frozen=True, slots=True)
class TopTwo:
    """The best two next tokens and the difference of their scores."""

    token_ids: tuple[int, int]
    gap: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token in which an output differs from its reference.

    Attributes:
        position: Number of the emitted token, from 0.
        token: Token there; ``None`` if the output ended before.
        reference_token: The reference's; ``None`` likewise.
        best: The best two tokens after the common prefix, by a plain forward.
    """

    position: int
    token: int | None
    reference_token: int | None
    best: TopTwo


def first_difference(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Position of the first token that differs or is there in one only; ``None`` if the outputs are the same."""
    for position, pair in enumerate(zip(tokens, reference, strict=False)):
        if pair[0] != pair[1]:
            return position
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))


def locate(
    prompt: Sequence[int],
    tokens: Sequence[int],
    reference: Sequence[int],
    best_after: Callable[[Sequence[int]], TopTwo],
) -> Difference | None:
    """The first difference, or ``None``.

    Args:
        prompt: What both continue.
        tokens: What was emitted.
        reference: What it is compared with.
        best_after: The best two tokens after prompt and emitted tokens.
    """
    position = first_difference(tokens, reference)
    if position is None:
        return None
    return Difference(
        position,
        tokens[position] if position < len(tokens) else None,
        reference[position] if position < len(reference) else None,
        best_after([*prompt, *reference[:position]]),
    )


def top_two(scores: torch.Tensor) -> TopTwo:
    """The best two of scores ``[vocab]``."""
    values, ids = scores.topk(2)
    return TopTwo((int(ids[0]), int(ids[1])), float(values[0] - values[1]))
