"""What a proposer is told after a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from paceline.api import CommittedBatch, KVView
from paceline.engine.commit import Committed
from paceline.engine.request import Request
from paceline.engine.target_pass import TargetOutput

__all__ = ["committed_batch"]


def committed_batch(
    committed: Committed,
    output: TargetOutput,
    views: Callable[[list[Request]], Mapping[str, KVView]],
) -> CommittedBatch:
    """Rows of the step that became true, for the requests that live on. ``O(requests)`` Python work."""
    plan = committed.plan
    live = [index for index, request in enumerate(plan.requests) if request.finish_reason is None]
    requests = [plan.requests[index] for index in live]
    rows = [_true_rows(committed, index) for index in live]
    counts = np.array([len(part) for part in rows], dtype=np.int64)
    row_ids = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
    starts, ends = plan.starts[live], committed.num_computed[live]
    device_rows = torch.from_numpy(row_ids).to(output.logits.device)
    return CommittedBatch(
        requests=tuple(request.view() for request in requests),
        row_request=np.repeat(np.arange(len(live)), counts),
        positions=plan.positions[row_ids],
        tokens=plan.tokens[row_ids],
        next_tokens=_join([r.tokens[s + 1 : e + 1] for r, s, e in zip(requests, starts, ends, strict=True)]),
        computed=np.stack([starts, ends], axis=1),
        restored=_restored(requests),
        emitted=np.array([_emitted(committed, index) for index in live], dtype=np.int64).reshape(-1, 2),
        recomputation=committed.recomputation[live],
        kv=views(requests),
        features={layer: values[device_rows] for layer, values in output.features.items()},
        top_tokens=None if output.top_tokens is None else output.top_tokens[device_rows],
    )


def _join(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _true_rows(committed: Committed, index: int) -> np.ndarray:
    """Plan rows whose tokens are true: known tokens, then the followed drafts."""
    plan = committed.plan
    first = int(plan.query_starts[index])
    count = int(committed.num_computed[index] - plan.starts[index])
    if index >= plan.num_decoding:
        return np.arange(first, first + count)
    return first + np.concatenate([[0], committed.outcome.nodes[index] + 1])[:count]


def _restored(requests: list[Request]) -> np.ndarray:
    """What came from the prefix cache; told once."""
    restored = np.array([[0, request.num_restored] for request in requests], dtype=np.int64).reshape(-1, 2)
    for request in requests:
        request.num_restored = 0
    return restored


def _emitted(committed: Committed, index: int) -> tuple[int, int]:
    request = committed.plan.requests[index]
    at = int(np.searchsorted(committed.plan.emitters, index))
    if at == len(committed.plan.emitters) or committed.plan.emitters[at] != index:
        return request.num_tokens, request.num_tokens
    return request.num_tokens - int(committed.outcome.num_emitted[at]), request.num_tokens
