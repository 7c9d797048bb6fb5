"""The constraint plugins of an engine: who enforces what a request asks, and what they answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.api import (
    ConstrainedRequest,
    Constraint,
    ConstraintBatch,
    ConstraintCapabilities,
    ConstraintError,
    ReleaseReason,
    TargetFacts,
)
from paceline.engine.errors import RequestError
from paceline.engine.request import Request
from paceline.host.errors import PluginCallError
from paceline.host.loading import Loaded
from paceline.sampling.params import SamplingParams

__all__ = ["ActiveConstraint", "Constraints", "EngineConstraintContext"]


@dataclass(frozen=True, slots=True)
class EngineConstraintContext:
    """``paceline.api.ConstraintContext``."""

    target: TargetFacts
    tokenizer: Any


@dataclass(slots=True)
class ActiveConstraint:
    """A constraint plugin and the object that it built."""

    plugin: Loaded
    built: Constraint
    capabilities: ConstraintCapabilities


_NOTHING = object()


class Constraints:
    """All constraints of an engine, in their defined order.

    Args:
        active: The constraints.
        num_mask_bytes: Bytes of a row's mask.
    """

    def __init__(self, active: Sequence[ActiveConstraint], vocab_size: int) -> None:
        self._active = list(active)
        self.num_mask_bytes = -(-vocab_size // 8)

    def resolve(self, request_id: str, params: SamplingParams, end_token_ids: Sequence[int]) -> list[tuple[int, Any]]:
        """Which constraints a request asks for: their numbers and what each is asked.

        Raises:
            RequestError: if none that is loaded enforces it, or structured outputs could never end.
        """
        asked = [(self._named(request_id, name), value) for name, value in params.constraints.items()]
        structured = params.structured_outputs
        if structured is not None:
            if not end_token_ids:
                raise RequestError(
                    f'request "{request_id}": structured_outputs end with an end token, and the request has none '
                    "(ignore_eos, or a model without one); give stop_token_ids or leave ignore_eos off"
                )
            asked.append((self._enforcing(request_id, structured.kind), structured.asked))
        asked.sort(key=lambda pair: pair[0])
        for (index, _), (following, _) in itertools.pairwise(asked):
            if index == following:
                raise RequestError(
                    f'request "{request_id}" asks constraint "{self._active[index].plugin.name}" both by its name and '
                    "by structured_outputs; ask it once"
                )
        return asked

    def _named(self, request_id: str, name: str) -> int:
        for index, constraint in enumerate(self._active):
            if constraint.plugin.name == name:
                return index
        raise RequestError(
            f'request "{request_id}" asks for constraint "{name}", which the engine was not built with '
            f"({self._loaded()}); name it in the engine's constraints"
        )

    def _enforcing(self, request_id: str, kind: str) -> int:
        for index, constraint in enumerate(self._active):
            if kind in constraint.capabilities.structured_outputs:
                return index
        raise RequestError(
            f'request "{request_id}" asks for structured_outputs of kind "{kind}", which no constraint of the engine '
            f'enforces ({self._loaded()}); build the engine with one that does, such as constraints=["llguidance"]'
        )

    def _loaded(self) -> str:
        names = ", ".join(constraint.plugin.name for constraint in self._active)
        return f"loaded: {names or 'none'}"

    def check(self, requests: Sequence[Request]) -> None:
        """Let the constraints refuse a request that was not queued yet; its samples ask the same.

        Raises:
            PacelineError: a constraint's own.
        """
        request = requests[0]
        for index, asked in request.constraints:
            with self._active[index].plugin.boundary("check"):
                self._active[index].built.check(_view(request, asked))

    def masks(self, rows: Sequence[tuple[Request, tuple[int, ...]]]) -> np.ndarray:
        """Which ids may be chosen, where every constraint of a request agrees.

        Args:
            rows: A request and what was drafted after its output, for each row; rows of one request stand together.

        Returns:
            uint8 ``[rows, num_mask_bytes]``, bits as ``paceline.api.Constraint.masks`` has them.
        """
        masks = np.full((len(rows), self.num_mask_bytes), 255, dtype=np.uint8)
        for number, constraint in enumerate(self._active):
            asked = [dict(request.constraints).get(number, _NOTHING) for request, _ in rows]
            own = [row for row, value in enumerate(asked) if value is not _NOTHING]
            while own:
                batch = _batch([rows[row] for row in own], [asked[row] for row in own])
                try:
                    masks[own] &= self._answer(constraint, batch)
                    break
                except ConstraintError as error:
                    failed = _end_one(rows, own, error)
                    masks[failed] = 0
                    own = [row for row in own if row not in failed]
        return masks

    def _answer(self, constraint: ActiveConstraint, batch: ConstraintBatch) -> np.ndarray:
        with constraint.plugin.boundary("masks"):
            answer = np.asarray(constraint.built.masks(batch))
        wanted = (len(batch.row_request), self.num_mask_bytes)
        if answer.dtype != np.uint8 or answer.shape != wanted:
            raise PluginCallError(
                f"{constraint.plugin.plugin}, masks returned {answer.dtype} {list(answer.shape)}, not uint8 "
                f"{list(wanted)}: one bit for each id, as numpy.packbits(allowed, axis=1, bitorder='little') packs them"
            )
        return answer

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        """Let the constraints forget requests."""
        for constraint in self._active:
            with constraint.plugin.boundary("release"):
                constraint.built.release(request_ids, reason)

    def close(self) -> None:
        """Close the constraints; one that raises does not keep the others open."""
        with ExitStack() as stack:
            for constraint in self._active:
                stack.enter_context(constraint.plugin.boundary("close"))
                stack.callback(constraint.built.close)


def _end_one(rows: Sequence[tuple[Request, tuple[int, ...]]], own: Sequence[int], error: ConstraintError) -> list[int]:
    """Blame the request that an error names; the numbers of its rows."""
    failed = [row for row in own if rows[row][0].request_id == error.request_id]
    if not failed:
        raise error
    rows[failed[0]][0].error = str(error)
    return failed


def _batch(rows: Sequence[tuple[Request, tuple[int, ...]]], asked: Sequence[Any]) -> ConstraintBatch:
    views: list[ConstrainedRequest] = []
    row_request = []
    for (request, _), own in zip(rows, asked, strict=True):
        if not views or views[-1].request_id != request.request_id:
            views.append(_view(request, own))
        row_request.append(len(views) - 1)
    width = max(len(path) for _, path in rows)
    drafted = [path + (-1,) * (width - len(path)) for _, path in rows]
    return ConstraintBatch(
        requests=tuple(views),
        row_request=np.array(row_request, dtype=np.int64),
        drafted=np.array(drafted, dtype=np.int64).reshape(len(rows), width),
    )


def _view(request: Request, asked: Any) -> ConstrainedRequest:
    return ConstrainedRequest(
        request_id=request.request_id,
        asked=asked,
        end_token_ids=tuple(sorted(request.stop_ids)),
        prompt=request.tokens[: request.num_prompt_tokens],
        output=request.tokens[request.num_prompt_tokens :],
    )
