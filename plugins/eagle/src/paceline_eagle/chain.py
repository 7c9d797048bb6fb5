"""Chains: the head goes on alone from the last known token, one forward of all requests per draft."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from paceline.api import Drafts, KVView, ProposeBatch
from paceline_eagle.runner import HeadRunner

__all__ = ["ChainDrafter"]


class ChainDrafter:
    """Drafts ``k`` tokens with ``k - 1`` forwards; the last is never fed.

    Args:
        runner: The head.
        coupled: Choose by the verifier's own rule and noise; else the likeliest token.
    """

    def __init__(self, runner: HeadRunner, coupled: bool) -> None:
        self._runner = runner
        self._coupled = coupled

    def draft(self, batch: ProposeBatch, view: KVView, states: Tensor, budgets: np.ndarray) -> Drafts:
        """Chains as long as the budgets, shorter where the rule chose an id that the head does not know."""
        lengths = budgets.copy()
        tokens = np.full((len(lengths), int(lengths.max(initial=0))), -1, dtype=np.int64)
        confidence = np.ones(tokens.shape)
        rows = np.arange(len(lengths))
        for depth in range(tokens.shape[1]):
            going_on = np.flatnonzero(lengths[rows] > depth)
            rows, states = rows[going_on], states[torch.from_numpy(going_on).to(states.device)]
            if not len(rows):
                break
            if depth > 0:
                states = self._step(view, rows, batch.positions[rows] + depth, tokens[rows, depth - 1], states)
            scores = self._runner.scores(states)
            chosen = self._choose(batch, scores, rows, depth)
            known = (chosen >= 0).cpu().numpy()
            lengths[rows[~known]] = depth
            tokens[rows[known], depth] = self._runner.target_ids[chosen].cpu().numpy()[known]
            confidence[rows, depth] = scores.softmax(-1).gather(1, chosen.clamp(min=0)[:, None])[:, 0].cpu().numpy()
        return Drafts(tokens=tokens, lengths=lengths, confidence=confidence.cumprod(axis=1))

    def _step(self, view: KVView, rows: np.ndarray, slots: np.ndarray, tokens: np.ndarray, states: Tensor) -> Tensor:
        """Feed the last drafts; their entries follow on those of the known tokens and are not reported."""
        return self._runner.forward(
            view, row_request=rows, slots=slots, positions=slots, tokens=torch.from_numpy(tokens), hidden=states
        )

    def _choose(self, batch: ProposeBatch, scores: Tensor, rows: np.ndarray, depth: int) -> Tensor:
        """The head's own ids int64 ``[rows]``, -1 where the target's rule took one that the head does not know."""
        if not self._coupled:
            return scores.argmax(-1)
        index = torch.from_numpy(rows).to(scores.device)
        spread = scores.new_zeros(len(batch.requests), len(self._runner.draft_ids))
        spread[index] = self._runner.spread(scores)
        chosen: Tensor = batch.choose(spread, batch.positions + 1 + depth)
        return self._runner.draft_ids[chosen[index]]
