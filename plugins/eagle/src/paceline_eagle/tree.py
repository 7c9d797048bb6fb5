"""Trees: every level expands its likeliest nodes, the likeliest of all are drafted (EAGLE-2, 2406.16858)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.api import Drafts, KVView, ProposeBatch
from paceline_eagle.pool import Candidates, Pool
from paceline_eagle.runner import HeadRunner
from paceline_eagle.tree_shape import TreeShape

__all__ = ["TreeDrafter"]


@dataclass(frozen=True, slots=True)
class _Level:
    """The nodes of a level that get children; at first the last known token alone.

    Attributes:
        nodes: int64 ``[requests, width]``, numbers in the pool, -1 = the last known token.
        log_confidence: ``[requests, width]``, joint with the ancestors'.
        states: ``[requests, width, H]``; 0 for what was not fed.
        paths: int64 ``[requests, width, levels]`` on the host: slots of a node's ancestors, then its own.
    """

    nodes: Tensor
    log_confidence: Tensor
    states: Tensor
    paths: np.ndarray

    @classmethod
    def root(cls, states: Tensor) -> _Level:
        """The last known tokens, by their states ``[requests, H]``."""
        num_requests = len(states)
        nodes = torch.full((num_requests, 1), -1, device=states.device)
        certain = torch.zeros(num_requests, 1, device=states.device)
        return cls(nodes, certain, states[:, None], np.zeros((num_requests, 1, 0), dtype=np.int64))


class TreeDrafter:
    """Grows the trees of all requests together, one forward per level.

    A node's children are the best of ``logits + temperature * noise``, and their softmax stands for the probability
    that the target takes them: at temperature 0 the head's own confidence, as in EAGLE-2; above it the best of
    ``log q + noise``, a sample without replacement that is coupled to the target's choice (Gumbel-max list sampling,
    2506.05632), judged as if the target's logits were off by the same amount at every temperature.

    Args:
        runner: The head.
        shape: Bounds of the trees; ``top_k`` at most the head's vocabulary.
        coupled: Use the verifier's noise; else draft for every request as if it were greedy.
    """

    def __init__(self, runner: HeadRunner, shape: TreeShape, coupled: bool) -> None:
        self._runner = runner
        self._shape = shape
        self._coupled = coupled

    def draft(self, batch: ProposeBatch, view: KVView, states: Tensor, budgets: np.ndarray) -> Drafts:
        """Trees of at most ``budgets`` nodes."""
        levels, widths = self._shape.levels(budgets), self._shape.widths(budgets)
        pool, level = Pool(), _Level.root(states)
        for depth in range(int(levels.max(initial=0))):
            candidates = self._candidates(batch, level, depth)
            num_parents = np.where(levels > depth + 1, widths, 0)
            if num_parents.any():
                level = self._grown(batch, view, level, candidates, pool.size, num_parents)
            pool.add(candidates)
        return pool.best(budgets)

    def _candidates(self, batch: ProposeBatch, level: _Level, depth: int) -> Candidates:
        """The best children of every node."""
        scores = self._runner.scores(level.states.flatten(0, 1)).unflatten(0, level.nodes.shape)
        if self._coupled and (noise := self._noise(batch, depth)) is not None:
            scores = scores + noise
        best = scores.log_softmax(-1).topk(self._shape.top_k)
        joint = level.log_confidence[:, :, None] + best.values
        return Candidates(
            tokens=self._runner.target_ids[best.indices].flatten(1),
            log_confidence=joint.flatten(1),
            parents=level.nodes[:, :, None].expand(joint.shape).flatten(1),
        )

    def _noise(self, batch: ProposeBatch, depth: int) -> Tensor | None:
        """What is added to the scores of all nodes of a level, ``[requests, 1, draft vocab]``, if anything is."""
        temperatures = [request.sampling.temperature for request in batch.requests]
        if not any(temperatures):
            return None
        noise: Tensor = batch.noise(batch.positions + 1 + depth)[:, self._runner.target_ids]
        return (noise * torch.tensor(temperatures, device=noise.device)[:, None])[:, None]

    def _grown(
        self,
        batch: ProposeBatch,
        view: KVView,
        level: _Level,
        candidates: Candidates,
        offset: int,
        num_parents: np.ndarray,
    ) -> _Level:
        """The next level: for each request the ``num_parents`` likeliest candidates, which are fed to the head.

        Their entries follow on those of the known tokens and are not reported. The others have ``budget`` likelier
        nodes before them, as have all below them, and are not fed. ``offset`` is the first candidate's number.
        """
        best = candidates.log_confidence.topk(self._shape.top_k)
        parents = best.indices // self._shape.top_k
        slots, paths = self._slots(batch, level, parents.cpu().numpy(), num_parents)
        is_fed = np.arange(self._shape.top_k) < num_parents[:, None]
        requests, on_device = np.nonzero(is_fed)[0], torch.from_numpy(is_fed).to(parents.device)
        before = level.states.take_along_dim(parents[:, :, None], dim=1)
        states = torch.zeros_like(before)
        states[on_device] = self._runner.forward(
            view,
            row_request=requests,
            slots=slots[is_fed],
            positions=batch.positions[requests] + paths.shape[2],
            tokens=candidates.tokens.take_along_dim(best.indices, dim=1)[on_device],
            hidden=before[on_device],
            visible=batch.positions[requests] + 1,
            paths=paths[is_fed],
        )
        return _Level(best.indices + offset, best.values, states, paths)

    def _slots(
        self, batch: ProposeBatch, level: _Level, parents: np.ndarray, num_parents: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The nodes' slots ``[requests, top_k]``, level after level behind the known tokens, and their paths."""
        depth = level.paths.shape[2]
        first = batch.positions + 1 + depth * num_parents
        slots = first[:, None] + np.arange(parents.shape[1])
        above = np.take_along_axis(level.paths, parents[:, :, None], axis=1)
        return slots, np.concatenate([above, slots[:, :, None]], axis=2)
