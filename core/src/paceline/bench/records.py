"""What a measurement brings."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.bench.plan import Cell

__all__ = ["Measurement", "RequestRecord", "Run", "merged", "timed"]


@dataclass(slots=True)
class RequestRecord:
    """One request.

    Attributes:
        token_ids: What was emitted, the end token included; of an engine that tells text only, that text's tokens.
        ttft_s: Time to the first token.
        tpot_s: Time per token after the first; ``None`` with fewer than two, or where they came all at once.
        text_num_tokens: How many an engine that tells text only says it emitted; ``None`` = ``token_ids`` are its own.
    """

    token_ids: list[int]
    ttft_s: float
    tpot_s: float | None
    text_num_tokens: int | None = None

    @property
    def num_tokens(self) -> int:
        """Emitted tokens."""
        return len(self.token_ids) if self.text_num_tokens is None else self.text_num_tokens


def timed(token_ids: list[int], times_s: Sequence[float]) -> RequestRecord:
    """A request whose ``n``-th token came ``times_s[n]`` after its start."""
    first_s, last_s = times_s[0], times_s[len(token_ids) - 1]
    tpot_s = (last_s - first_s) / (len(token_ids) - 1) if len(token_ids) > 1 else None
    return RequestRecord(token_ids, first_s, tpot_s)


@dataclass(slots=True)
class Run:
    """Requests that ran together, or several such groups one after another.

    Attributes:
        seconds: Wall time.
        requests: In the order of the prompts.
        num_passes: Passes of the target; ``None`` where the engine does not tell.
        num_drafts: Verify steps with drafts, counted per request; 0 where the engine does not tell.
        num_draft_tokens: Draft tokens verified.
        num_accepted_tokens: Of them accepted.
        draft_time_s: Time in the proposer.
        verify_time_s: Time in the target and the verifier.
    """

    seconds: float
    requests: list[RequestRecord] = field(default_factory=list)
    num_passes: int | None = None
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    draft_time_s: float = 0.0
    verify_time_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Emitted tokens."""
        return sum(request.num_tokens for request in self.requests)

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
    passes = [run.num_passes for run in runs if run.num_passes is not None]
    return Run(
        seconds=sum(run.seconds for run in runs),
        requests=[request for run in runs for request in run.requests],
        num_passes=sum(passes) if len(passes) == len(runs) else None,
        num_drafts=sum(run.num_drafts for run in runs),
        num_draft_tokens=sum(run.num_draft_tokens for run in runs),
        num_accepted_tokens=sum(run.num_accepted_tokens for run in runs),
        draft_time_s=sum(run.draft_time_s for run in runs),
        verify_time_s=sum(run.verify_time_s for run in runs),
    )
