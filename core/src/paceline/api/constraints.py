"""Constraints: which tokens may come next, as a function of what came before (grammars, schemas, custom processors)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from paceline.api.errors import PacelineError
from paceline.api.facts import TargetFacts
from paceline.api.proposers import ReleaseReason
from paceline.api.specs import Spec

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "ConstrainedRequest",
    "Constraint",
    "ConstraintBatch",
    "ConstraintCapabilities",
    "ConstraintContext",
    "ConstraintError",
    "ConstraintSpec",
]


class ConstraintError(PacelineError):
    """What a request asks of a constraint cannot be enforced.

    Attributes:
        request_id: The request; raised out of ``masks``, the error ends it and no other.
    """

    code = "PACELINE-E503"

    def __init__(self, message: str, request_id: str = "") -> None:
        super().__init__(message)
        self.request_id = request_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintCapabilities:
    """What a constraint enforces.

    Attributes:
        structured_outputs: Which of ``"json"``, ``"json_object"``, ``"regex"``, ``"choice"`` and ``"grammar"`` it
            takes. A constraint without any is asked for by its own name.
    """

    structured_outputs: frozenset[str] = frozenset()


class ConstraintContext(Protocol):
    """What the host hands a constraint when it is built; usable for the life of the engine."""

    @property
    def target(self) -> TargetFacts:
        """Facts about the target."""

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer as transformers has it, to be read only; ``None`` when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstrainedRequest:
    """One constrained request, read-only; valid until the call that received it returns.

    Attributes:
        request_id: Key for state that the constraint keeps; dropped on ``release``.
        asked: What the request asks: for structured outputs a mapping with one of the kinds and its value, and with
            ``whitespace_pattern`` and ``disable_any_whitespace`` where the request gives them; else the caller's own
            value.
        end_token_ids: Ids that end the request, sorted; never empty for structured outputs.
        prompt: int64 ``[num_prompt_tokens]``, not writeable.
        output: int64 ``[num_output_tokens]``, the tokens emitted so far; not writeable.
    """

    request_id: str
    asked: Any
    end_token_ids: tuple[int, ...]
    prompt: np.ndarray
    output: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintBatch:
    """Rows that each choose a token.

    Attributes:
        requests: The requests that they belong to.
        row_request: int64 ``[rows]``, index into ``requests``; rows of one request stand together.
        drafted: int64 ``[rows, width]``, what stands between the output and the row's choice, padded with -1.
    """

    requests: tuple[ConstrainedRequest, ...]
    row_request: np.ndarray
    drafted: np.ndarray


class Constraint(ABC):
    """Says which tokens may come next. What it allows is all it decides: the target chooses among it."""

    def check(self, request: ConstrainedRequest) -> None:  # noqa: B027
        """Refuse, before anything is queued, what cannot be enforced. ``request_id`` may not become live.

        Raises:
            ConstraintError: naming what was asked, the reason and the remedy.
        """

    @abstractmethod
    def masks(self, batch: ConstraintBatch) -> np.ndarray:
        """Which ids may be chosen at each row: a pure function of the request and the row's drafted tokens.

        The core keeps the answers while a request's output stays as it is, so one row is asked for once.

        Returns:
            uint8 ``[rows, ceil(vocab / 8)]``; bit ``i % 8`` (the lowest is 0) of byte ``i // 8`` belongs to id ``i``,
            as ``numpy.packbits(allowed, axis=1, bitorder="little")`` gives it. A row after a token that was not
            allowed, or after one that ended the request, is all zeros. So is one behind drafted tokens that cannot be
            decided, as where a library gives up.

        Raises:
            ConstraintError: naming the request whose output so far cannot be continued; the others are asked for again.
        """

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:  # noqa: B027
        """Forget these requests. Unknown ids and repeats are fine."""

    def close(self) -> None:  # noqa: B027
        """Give back what the constraint holds. Called once."""


ConstraintSpec = Spec[ConstraintCapabilities, ConstraintContext, Constraint]
