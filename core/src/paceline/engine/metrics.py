"""What requests cost, and what speculation brought them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

__all__ = ["EngineStats", "RequestMetrics", "merged"]


@dataclass(slots=True)
class RequestMetrics:
    """Figures of one request; times in seconds of the engine's clock.

    Attributes:
        arrival_time_s: When it was added.
        first_scheduled_time_s: When it was first admitted.
        first_token_time_s: When its first token was emitted.
        finished_time_s: When it ended.
        num_cached_tokens: Prompt tokens taken from the prefix cache at first admission.
        num_generated_tokens: Tokens emitted.
        num_preemptions: How often its KV was given up and made again.
        num_drafts: Verify steps with at least one draft token.
        num_draft_tokens: Draft tokens verified.
        num_accepted_tokens: Of them accepted.
        accepted_per_position: How many steps accepted the draft token at each position.
        draft_time_s: Time its steps spent in the proposer.
        verify_time_s: Time its steps spent in the target pass and the verifier.
    """

    arrival_time_s: float
    first_scheduled_time_s: float | None = None
    first_token_time_s: float | None = None
    finished_time_s: float | None = None
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    draft_time_s: float = 0.0
    verify_time_s: float = 0.0

    @property
    def queue_time_s(self) -> float | None:
        """Waiting time before the first admission."""
        start = self.first_scheduled_time_s
        return None if start is None else start - self.arrival_time_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from arrival."""
        first = self.first_token_time_s
        return None if first is None else first - self.arrival_time_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; ``None`` with fewer than two tokens."""
        if self.first_token_time_s is None or self.finished_time_s is None or self.num_generated_tokens < 2:
            return None
        return (self.finished_time_s - self.first_token_time_s) / (self.num_generated_tokens - 1)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per verify step with drafts, bonus included; ``None`` without drafts."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of the verify steps with drafts that accepted the draft token at each position."""
        return (self.accepted_per_position / max(self.num_drafts, 1)).tolist()

    def record_emission(self, num_tokens: int, now_s: float) -> None:
        """Count tokens emitted in one step."""
        if self.first_token_time_s is None:
            self.first_token_time_s = now_s
        self.num_generated_tokens += num_tokens

    def record_drafts(self, num_drafted: int, num_accepted: int) -> None:
        """Count one verify step with ``num_drafted`` >= 1 draft tokens."""
        if num_drafted > len(self.accepted_per_position):
            self.accepted_per_position = np.pad(
                self.accepted_per_position, (0, num_drafted - len(self.accepted_per_position))
            )
        self.accepted_per_position[:num_accepted] += 1
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted

    def as_dict(self) -> dict[str, Any]:
        """Every figure by name as plain values, the derived ones among them."""
        names = ("queue_time_s", "ttft_s", "tpot_s", "mean_acceptance_length", "acceptance_by_position")
        plain = asdict(self) | {"accepted_per_position": self.accepted_per_position.tolist()}
        return plain | {name: getattr(self, name) for name in names}


def merged(parts: Sequence[RequestMetrics]) -> RequestMetrics:
    """Figures of several samples of one prompt: from the first arrival to the last end, counters and times in sum.

    Cached prompt tokens are those of the first sample.
    """
    first, per_position = parts[0], max((part.accepted_per_position for part in parts), key=len)
    whole = RequestMetrics(
        arrival_time_s=first.arrival_time_s,
        first_scheduled_time_s=_known(min, [part.first_scheduled_time_s for part in parts]),
        first_token_time_s=_known(min, [part.first_token_time_s for part in parts]),
        num_cached_tokens=first.num_cached_tokens,
        accepted_per_position=np.zeros_like(per_position),
    )
    if all(part.finished_time_s is not None for part in parts):
        whole.finished_time_s = _known(max, [part.finished_time_s for part in parts])
    for part in parts:
        whole.accepted_per_position[: len(part.accepted_per_position)] += part.accepted_per_position
        for name in _SUMMED:
            setattr(whole, name, getattr(whole, name) + getattr(part, name))
    return whole


_SUMMED = (
    "num_generated_tokens",
    "num_preemptions",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "draft_time_s",
    "verify_time_s",
)


def _known(pick: Callable[[Sequence[float]], float], times_s: Sequence[float | None]) -> float | None:
    given = [time_s for time_s in times_s if time_s is not None]
    return pick(given) if given else None


@dataclass(slots=True)
class EngineStats:
    """Counters since the start; times in seconds.

    On a device that works asynchronously, ``forward_time_s`` is the time to enqueue the model's work.
    """

    num_steps: int = 0
    num_generated_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0
    num_aborted: int = 0
    draft_time_s: float = 0.0
    verify_time_s: float = 0.0
    forward_time_s: float = 0.0

    def snapshot(self) -> EngineStats:
        """The figures now, to subtract from later ones."""
        return replace(self)
