"""Loading what Paceline is compared with: transformers' ways to generate, and running servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.bench.continuous_batching import ContinuousBatchingEngine
from paceline.bench.engines import BenchEngine
from paceline.bench.errors import ContinuousBatchingError
from paceline.bench.lineup import Baseline, Contest
from paceline.bench.rival_choices import RivalChoice
from paceline.bench.server import Server
from paceline.bench.server_engine import ServerEngine
from paceline.bench.transformers_engine import TransformersEngine

__all__ = ["Rivals", "load_rivals"]


@dataclass(slots=True)
class Rivals:
    """The engines that are not Paceline's.

    Attributes:
        transformers: ``generate``, and with prompt lookup.
        batching: transformers' continuous batching, unless it is left out.
        why_not_batching: Why it is, unless nobody asked for it.
        servers: Running servers.
    """

    transformers: list[TransformersEngine]
    batching: ContinuousBatchingEngine | None = None
    why_not_batching: str | None = None
    servers: list[ServerEngine] = field(default_factory=list)

    def around(self, engines: Sequence[BenchEngine]) -> list[BenchEngine]:
        """All in the order of running: transformers, those given, servers."""
        batching = [] if self.batching is None else [self.batching]
        return [*self.transformers, *batching, *engines, *self.servers]

    def batching_facts(self) -> dict[str, Any] | None:
        """Settings of transformers' continuous batching, ready for JSON, or why it is left out."""
        if self.batching is not None:
            return self.batching.facts
        return None if self.why_not_batching is None else {"left_out": self.why_not_batching}

    def server_facts(self) -> dict[str, Any]:
        """``engine -> what is known of the server``, ready for JSON, once it has run."""
        return {server.name: server.facts for server in self.servers}

    def close(self) -> None:
        """Give back what they hold beyond the model."""
        if self.batching is not None:
            self.batching.close()


def load_rivals(
    contest: Contest,
    choice: RivalChoice,
    baseline: Baseline,
    servers: Sequence[Server],
    *,
    longest: int,
    max_batch: int,
) -> Rivals:
    """Put an engine before each.

    Args:
        contest: Whether outputs end at the end token.
        choice: Which of transformers' modes run.
        baseline: transformers' model.
        servers: Connected servers.
        longest: Most tokens of a sequence, prompt and output.
        max_batch: Most concurrent requests.

    Raises:
        ContinuousBatchingError: if it must run and cannot.
    """
    loaded, ignore_eos = baseline.loaded, contest.ignore_eos
    drafts = [0, choice.lookup_tokens] if choice.lookup_tokens else [0]
    found = Rivals([TransformersEngine(loaded, ignore_eos=ignore_eos, lookup_tokens=number) for number in drafts])
    found.servers = [ServerEngine(server, baseline.tokenize, ignore_eos=ignore_eos) for server in servers]
    if choice.continuous_batching:
        try:
            found.batching = ContinuousBatchingEngine(
                loaded, ignore_eos=ignore_eos, longest=longest, max_requests=max_batch
            )
        except ContinuousBatchingError as error:
            if choice.must_batch:
                raise
            found.why_not_batching = error.message
    return found
