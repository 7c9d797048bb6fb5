"""What a measurement brings."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.bench.plan import Cell

__all__ = ["Measurement", "RequestRecord", "Run", "merged"]


@dataclass(slots=True)
class RequestRecord:
    """One request.

    Attributes:
        token_ids: What was emitted, the end token included.
        ttft_s: Time to the first token.
        tpot_s: Time per token after the first; ``None`` with fewer than two.
    """

    token_ids: list[int]
    ttft_s: float
    tpot_s: float | None


@dataclass(slots=True)
class Run:
    """Requests that ran together, or several such groups one after another.

    Attributes:
        seconds: Wall time.
        requests: In the order of the prompts.
        num_passes: Passes of the target.
        num_drafts: Verify steps with drafts, counted per request; 0 where the engine does not tell.
        num_draft_tokens: Draft tokens verified.
        num_accepted_tokens: Of them accepted.
        draft_time_s: Time in the proposer.
        verify_time_s: Time in the target and the verifier.
    """

    seconds: float
    requests: list[RequestRecord] = field(default_factory=list)
    num_passes: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    draft_time_s: float = 0.0
    verify_time_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Emitted tokens."""
        return sum(len(request.token_ids) for request in self.requests)

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens per second of wall time."""
        return self.num_tokens / self.seconds

    @property
    def ttft_s(self) -> float:
        """Median over the requests."""
        return statistics.median(request.ttft_s for request in self.requests)

    @property
    def tpot_s(self) -> float | None:
        """Median over the requests with at least two tokens."""
        times = [request.tpot_s for request in self.requests if request.tpot_s is not None]
        return statistics.median(times) if times else None


@dataclass(slots=True)
class Measurement:
    """A run and where it belongs."""

    round_index: int
    cell: Cell
    engine: str
    run: Run


def merged(runs: Sequence[Run]) -> Run:
    """Runs one after another as one: times and counts add up."""
    return Run(
        seconds=sum(run.seconds for run in runs),
        requests=[request for run in runs for request in run.requests],
        num_passes=sum(run.num_passes for run in runs),
        num_drafts=sum(run.num_drafts for run in runs),
        num_draft_tokens=sum(run.num_draft_tokens for run in runs),
        num_accepted_tokens=sum(run.num_accepted_tokens for run in runs),
        draft_time_s=sum(run.draft_time_s for run in runs),
        verify_time_s=sum(run.verify_time_s for run in runs),
    )
