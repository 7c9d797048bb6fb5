"""Speculation controllers: how many tokens each request may draft."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.api.drafts import Drafts
from paceline.api.facts import TargetFacts
from paceline.api.proposers import ReleaseReason
from paceline.api.specs import Spec

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "ControllerCapabilities",
    "ControllerContext",
    "ControllerSpec",
    "EngineState",
    "SpeculationController",
    "StepOutcome",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """The engine before a step. Arrays are on the host, one entry per decoding request.

    Attributes:
        request_ids: The decoding requests.
        limits: int64 ``[requests]``, the most that each may draft (its own limit, the proposer's, the room left).
        drafted: int64 ``[requests]``, tokens drafted so far.
        accepted: int64 ``[requests]``, of them accepted.
        num_waiting: Requests not yet admitted.
        free_block_ratio: Share of the pool that is free or evictable, 0 to 1.
    """

    request_ids: tuple[str, ...]
    limits: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray
    num_waiting: int
    free_block_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a step drafted, what came of it and what it cost; one entry per request that drafted, which may be none.

    Attributes:
        request_ids: The requests.
        drafted: int64 ``[requests]``.
        accepted: int64 ``[requests]``.
        num_rows: Rows of the target pass, prompt chunks included: one for each decoding request, one for each draft.
        draft_time_s: Time in the proposer.
        verify_time_s: Time in the target pass and the verifier.
        num_prompt_rows: Rows of prompt chunks.
    """

    request_ids: tuple[str, ...]
    drafted: np.ndarray
    accepted: np.ndarray
    num_rows: int
    draft_time_s: float
    verify_time_s: float
    num_prompt_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerCapabilities:
    """What a controller wants.

    Attributes:
        every_step: ``observe`` is called after every step, not only after those that drafted.
    """

    every_step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """What a controller is built with.

    Attributes:
        target: The target's facts.
        max_tokens: The configured draft length.
    """

    target: TargetFacts
    max_tokens: int


class SpeculationController(ABC):
    """Chooses draft lengths. A budget may depend on anything but the target's choice in the same step."""

    @abstractmethod
    def budgets(self, state: EngineState) -> np.ndarray:
        """int64 ``[requests]``: the most nodes each request may draft now, 0 included."""

    def trim(self, drafts: Drafts, state: EngineState) -> np.ndarray:
        """int64 ``[requests of the drafts]``: how many of each row's nodes to keep, counted from the first."""
        import numpy as np

        return np.asarray(drafts.lengths)

    def observe(self, outcome: StepOutcome) -> None:  # noqa: B027
        """Learn what a step drafted, what came of it and what it cost."""

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:  # noqa: B027
        """Forget these requests. Unknown ids and repeats are fine; a preempted one may come again under its id."""


ControllerSpec = Spec[ControllerCapabilities, ControllerContext, SpeculationController]
