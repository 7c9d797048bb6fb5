"""The commit: what was chosen becomes state, the rest is rewound."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch

from paceline.engine.errors import InvalidLogitsError
from paceline.engine.plan import Plan, offsets
from paceline.engine.request import FinishReason, Request
from paceline.engine.verifier import Outcome
from paceline.kv.manager import KVManager
from paceline.kv.storage import KVStorage
from paceline.ops.kv import copy_blocks, move_kv

__all__ = ["Committed", "Committer"]


@dataclass(slots=True)
class Committed:
    """What became true in a step.

    Attributes:
        plan: The plan that ran.
        outcome: What was chosen.
        num_computed: int64 ``[S]``, computed tokens of each request of the plan, after the step.
        recomputation: bool ``[S]``, whether its rows repeat work lost to a preemption.
        finished: The requests that ended.
    """

    plan: Plan
    outcome: Outcome
    num_computed: np.ndarray
    recomputation: np.ndarray
    finished: list[Request]


class Committer:
    """Applies outcomes to requests and KV."""

    def __init__(self, kv: KVManager, storage: KVStorage) -> None:
        self._kv = kv
        self._layers = storage.layers("target")
        self._shared_layers = storage.shared_layers

    def copy_blocks(self) -> None:
        """Give newly admitted requests the heads of blocks that they share in part, before anything is written."""
        sources, destinations = self._kv.take_copies()
        if len(sources):
            device = self._shared_layers[0][0].device
            copy_blocks(
                self._shared_layers, torch.from_numpy(sources).to(device), torch.from_numpy(destinations).to(device)
            )

    def commit(self, plan: Plan, outcome: Outcome) -> Committed:
        """Append what was emitted, publish full blocks, give back what drafts reserved."""
        if plan.paths is not None:
            self._move_tree_kv(plan, outcome)
        num_computed = plan.starts + plan.counts
        num_computed[: plan.num_decoding] = plan.starts[: plan.num_decoding] + 1
        num_computed[plan.emitters] += outcome.num_accepted
        retried = np.array(outcome.retried, dtype=np.int64)
        num_computed[plan.emitters[retried]] = plan.starts[plan.emitters[retried]] + outcome.num_emitted[retried]
        is_finite = self._is_finite(plan, num_computed)
        once = np.array([request.num_once_computed for request in plan.requests], dtype=np.int64)
        emitter_of = dict(zip(plan.emitters.tolist(), range(len(plan.emitters)), strict=True))
        finished = []
        for index, request in enumerate(plan.requests):
            if request.prompt_logprobs is not None:
                request.prompt_logprobs.extend(outcome.prompt_logprobs.get(index, ()))
            if index in emitter_of:
                self._apply(request, outcome, emitter_of[index])
            request.may_publish &= bool(is_finite[index])
            if request.finish_reason is not FinishReason.ERROR:
                self._commit_kv(request, int(num_computed[index]), plan.paths is not None)
            if request.finish_reason is not None:
                finished.append(request)
        return Committed(plan, outcome, num_computed, plan.starts < once, finished)

    def _apply(self, request: Request, outcome: Outcome, emitter: int) -> None:
        request.append(outcome.tokens[emitter, : outcome.num_emitted[emitter]])
        if request.logprobs is not None:
            request.logprobs.extend(outcome.logprobs.get(emitter, ()))
        if emitter in outcome.invalid:
            request.finish_reason = FinishReason.ERROR
            request.error = request.error or str(
                InvalidLogitsError(_INVALID.format(request.request_id, request.num_tokens))
            )
        elif emitter in outcome.retried:
            request.draft_limit = 0
        elif emitter in outcome.finished:
            request.finish_reason, request.stop_reason = outcome.finished[emitter]

    def _commit_kv(self, request: Request, num_computed: int, is_tree: bool) -> None:
        """Draft entries stay valid as far as the drafts were followed; those of a tree lie elsewhere and go."""
        num_true = min(num_computed, request.num_computed + 1) if is_tree else num_computed
        request.num_computed = num_computed
        request.num_once_computed = max(request.num_once_computed, num_computed)
        self._kv.clamp_drafts(request.request_id, max(num_true, request.write_from))
        if request.may_publish:
            self._kv.commit(request.request_id, request.tokens, num_computed)
        self._kv.rewind(request.request_id, request.num_tokens)

    def _is_finite(self, plan: Plan, num_computed: np.ndarray) -> np.ndarray:
        """bool ``[S]``: whether the KV that a request computed is finite. NaN of any layer reaches the last one.

        Rows before a NaN token in one chunk may have caught it, and are not what their tokens alone would give.
        """
        if isfinite(self._last_keys(plan.slots).sum(dtype=torch.float32).item()):
            return np.ones(len(plan.requests), dtype=bool)
        counts = num_computed - plan.starts
        seq = np.repeat(np.arange(len(counts)), counts)
        slots = self._kv.slots(plan.table_rows[seq], offsets(counts) + plan.starts[seq])
        finite = self._last_keys(slots).flatten(1).isfinite().all(dim=1).cpu().numpy()
        return np.bincount(seq[~finite], minlength=len(counts)) == 0

    def _last_keys(self, slots: np.ndarray) -> torch.Tensor:
        keys = self._layers[-1][0].flatten(0, 1)
        return keys[torch.from_numpy(slots).to(keys.device)]

    def _move_tree_kv(self, plan: Plan, outcome: Outcome) -> None:
        """Bring the followed path's target KV from its nodes' slots into the slots of its positions."""
        nodes = outcome.nodes
        emitter, depth = np.nonzero((nodes >= 0) & (nodes != np.arange(nodes.shape[1])))
        seq = plan.emitters[emitter]
        rows = plan.table_rows[seq]
        roots = plan.starts[seq] + 1
        source = self._kv.slots(rows, roots + nodes[emitter, depth])
        target = self._kv.slots(rows, roots + depth)
        if len(source):
            move_kv(self._layers, torch.from_numpy(source), torch.from_numpy(target))


_INVALID = (
    'request "{0}" ended: the model gave NaN or no finite score for the token at position {1}; '
    "check the checkpoint and the dtype (float16 overflows where bfloat16 does not), "
    "and whether allowed_token_ids, bad_words, min_tokens and constraints leave a token to choose"
)
