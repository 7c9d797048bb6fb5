"""The head on the engine's blocks: tokens and features in, states and scores out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from paceline.api import KVView, ProposerContext
from paceline_eagle.head import Head

__all__ = ["HeadRunner"]

FIRST_ENTRY = 1  # the token at 0 has no feature before it


class HeadRunner:
    """Runs a head for rows of several requests.

    Attributes:
        target_ids: int64 ``[draft vocab]``, the target's id of each id of the head.
        draft_ids: int64 ``[vocab]``, the head's id of each id of the target, -1 where it has none.

    Args:
        head: The head, in the target's dtype and on its device.
        context: Gives attention, and what the head shares with the target.
    """

    def __init__(self, head: Head, context: ProposerContext) -> None:
        self._head = head
        self._context = context
        self._device = context.target.device
        vocab_size = context.target.vocab_size
        ids = head.draft_to_target
        self.target_ids = torch.arange(vocab_size, device=self._device) if ids is None else ids
        self.draft_ids = torch.full((vocab_size,), -1, device=self._device)
        self.draft_ids[self.target_ids] = torch.arange(len(self.target_ids), device=self._device)

    def fuse(self, features: Mapping[int | str, Tensor]) -> Tensor:
        """The target's features ``[rows, target hidden]`` of each layer as one ``[rows, H]``."""
        return self._head.fuse([features[layer] for layer in self._head.config.aux_layers])

    def clear_first_slots(self, view: KVView, requests: np.ndarray) -> None:
        """Write zeros into slot 0 of these requests: nobody reads it, but what lies in a block follows from its key."""
        config = self._head.config
        dtype = getattr(torch, self._context.target.dtype)
        queries = torch.zeros(len(requests), config.num_heads, config.head_size, dtype=dtype, device=self._device)
        entries = queries[:, : config.num_kv_heads]
        attend = self._context.attention(view, row_request=requests, slots=np.zeros_like(requests))
        attend(0, queries, entries, entries)

    def forward(
        self,
        view: KVView,
        *,
        row_request: np.ndarray,
        slots: np.ndarray,
        positions: np.ndarray,
        tokens: Tensor,
        hidden: Tensor,
        visible: np.ndarray | None = None,
        paths: np.ndarray | None = None,
    ) -> Tensor:
        """One step of the head; the rows' entries are written.

        Args:
            view: Of the head's group.
            row_request: int64 ``[rows]``, ascending; likewise ``slots``, ``visible`` and ``paths`` are those of
                ``ProposerContext.attention``.
            slots: int64 ``[rows]``.
            positions: int64 ``[rows]``, of the rows' tokens in their sequences.
            tokens: int64 ``[rows]``, the target's ids.
            hidden: ``[rows, H]``, fused features of the tokens before, or states in their place.
            visible: int64 ``[rows]``.
            paths: int64 ``[rows, depth]``.

        Returns:
            States ``[rows, H]``.
        """
        attend = self._context.attention(
            view, row_request=row_request, slots=slots, visible=visible, paths=paths, first=FIRST_ENTRY
        )
        rotations = torch.from_numpy(positions - 1).to(self._device)
        states: Tensor = self._head(
            self._embed(tokens.to(self._device)), hidden, rotations, lambda q, k, v: attend(0, q, k, v)
        )
        return states

    def _embed(self, tokens: Tensor) -> Tensor:
        if self._head.embed_tokens is not None:
            return self._head.embed_tokens(tokens)
        return self._context.embed(tokens)

    def scores(self, states: Tensor) -> Tensor:
        """Logits float32 ``[rows, draft vocab]`` of states ``[rows, H]``; without padded ids."""
        if self._head.lm_head is None:
            scores = self._context.logits(self._head.readout(states))
        else:
            scores = self._head.logits(states).float()
        return scores[:, : len(self.target_ids)]

    def spread(self, scores: Tensor) -> Tensor:
        """Scores of the head's ids ``[rows, draft vocab]`` as scores of the target's, which lack the others' mass."""
        spread = scores.new_full((len(scores), len(self.draft_ids)), -torch.inf)
        spread[:, self.target_ids] = scores
        return spread
