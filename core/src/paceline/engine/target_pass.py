"""The target pass: a plan becomes tensors and block tables, the runner does the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from paceline.engine.plan import Plan
from paceline.kv.manager import KVManager
from paceline.model.runner import ModelRunner
from paceline.ops.batch import AttentionBatch

__all__ = ["TargetOutput", "TargetPass"]


@dataclass(slots=True)
class TargetOutput:
    """What the target gave for a plan of ``T`` rows.

    Attributes:
        logits: float32 ``[choice rows, vocab]``.
        prompt_logits: float32 ``[prompt rows, vocab]``.
        features: ``layer -> [T, hidden]`` for the layers asked for.
        top_tokens: int64 ``[T, top_k]``, if asked for.
        forward_time_s: Time in the model.
    """

    logits: torch.Tensor
    prompt_logits: torch.Tensor
    features: Mapping[int | str, torch.Tensor]
    top_tokens: torch.Tensor | None
    forward_time_s: float


class TargetPass:
    """Runs plans on the target; rows whose KV came from the prefix cache do not write it again.

    Args:
        vocab_size: Ids that may be chosen; logits beyond it are cut off.
        top_k: Top tokens of every row that the proposer asked for; 0 = none.
        clock: Seconds.
    """

    def __init__(
        self,
        runner: ModelRunner,
        kv: KVManager,
        *,
        vocab_size: int,
        top_k: int,
        device: torch.device,
        clock: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._kv = kv
        self._vocab_size = vocab_size
        self._top_k = top_k
        self._device = device
        self._clock = clock

    def forward(self, plan: Plan) -> TargetOutput:
        """One pass over the plan's rows."""
        wanted = self._tensor(np.concatenate([plan.choice_rows, plan.prompt_rows]))
        logit_rows = self._tensor(np.arange(plan.num_rows)) if self._top_k else wanted
        inputs = self._tensor(plan.tokens), self._tensor(plan.positions), self._batch(plan), logit_rows
        started_s = self._clock()
        output = self._runner.forward(*inputs)
        forward_time_s = self._clock() - started_s
        logits = output.logits[:, : self._vocab_size]
        top_tokens = logits.topk(self._top_k, dim=-1).indices if self._top_k else None
        if self._top_k:
            logits = logits[wanted]
        num_choices = len(plan.choice_rows)
        return TargetOutput(
            logits[:num_choices], logits[num_choices:], output.features, top_tokens, forward_time_s=forward_time_s
        )

    def _batch(self, plan: Plan) -> AttentionBatch:
        block_size = self._kv.block_size
        write_from = np.array([request.write_from for request in plan.requests], dtype=np.int64)
        slots = np.where(plan.slot_positions < write_from[plan.row_seq], -1, plan.slots)
        return AttentionBatch.build(
            query_starts=plan.query_starts,
            slots=slots,
            block_tables=self._kv.block_tables[plan.table_rows, : -(-int(plan.slot_positions.max() + 1) // block_size)],
            block_size=block_size,
            visible=plan.visible,
            paths=plan.paths,
            device=self._device,
        )

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)
