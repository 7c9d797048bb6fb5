"""Training-time test (EAGLE-3, arXiv 2503.01840, section 3): the head on its own states, as it will draft.

Draft number ``j`` after the committed slot ``b`` stands in slot ``b + j``. It reads entries made from true features in
the slots up to ``b``, and the head's own in the slots between: those of draft ``i`` in slot ``b + i``. All ``b`` are
computed at once: step ``j`` runs every slot ``s`` with ``b = s - j``, so that its query sees the keys of step 0 up to
``s - j`` and one key of each later step ``i``, that in slot ``s - j + i``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from paceline_eagle.head import Head
from paceline_eagle.training.batches import Batch

__all__ = ["unrolled"]

Embed = Callable[[Any], Any]


def unrolled(head: Head, batch: Batch, embeddings: Any, num_steps: int) -> Iterator[tuple[Any, Any]]:
    """Run ``num_steps`` drafts behind every committed slot of the answers.

    Args:
        head: The head.
        batch: ``T`` rows.
        embeddings: float32 ``[T, hidden]`` of ``batch.tokens``.
        num_steps: How many drafts follow each other.

    Yields:
        For each step ``rows`` int64 ``[R]`` and the head's states float32 ``[R, hidden]`` of these rows.
    """
    attention = _Attention(batch)
    everything = torch.arange(len(batch.tokens), device=batch.tokens.device)
    states = head(embeddings, head.fuse(list(batch.features.values())), batch.offset, attention.step(everything))
    rows = batch.rows(0)
    previous = states
    yield rows, states[rows]
    for step in range(1, num_steps):
        rows = batch.rows(step)
        hidden = previous[rows - 1]
        drafted = head(embeddings[rows], hidden, batch.offset[rows], attention.step(rows))
        previous = torch.zeros_like(states).index_copy(0, rows, drafted)
        yield rows, drafted


class _Attention:
    """Keeps the keys and values of the steps so far, each sample padded to the longest."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._shape = (int(batch.sequence[-1]) + 1, int(batch.offset.max()) + 1)
        self._keys: list[Any] = []
        self._values: list[Any] = []

    def step(self, rows: Any) -> Callable[[Any, Any, Any], Any]:
        """The ``attend`` of the next step, for these rows of the batch."""

        def attend(query: Any, key: Any, value: Any) -> Any:
            self._keys.append(self._padded(key, rows))
            self._values.append(self._padded(value, rows))
            grouped = query.unflatten(1, (key.shape[1], -1))  # [rows, kv heads, heads per kv head, size]
            out = self._attend(self._padded(grouped, rows))
            return out[self._batch.sequence[rows], self._batch.offset[rows]].flatten(1, 2)

        return attend

    def _padded(self, values: Any, rows: Any) -> Any:
        """``[rows, ...] -> [samples, length, ...]``."""
        out = values.new_zeros(*self._shape, *values.shape[1:])
        return out.index_put((self._batch.sequence[rows], self._batch.offset[rows]), values)

    def _attend(self, query: Any) -> Any:
        """``[samples, length, kv heads, group, size]`` of queries."""
        step = len(self._keys) - 1
        query = query * query.shape[-1] ** -0.5
        true = torch.einsum("blkgd,bmkd->blkgm", query, self._keys[0])
        visible = torch.ones(true.shape[1], true.shape[1], dtype=torch.bool, device=true.device).tril(-step)
        scores = [true.masked_fill(~visible[None, :, None, None, :], float("-inf"))]
        drafted = [torch.roll(keys, step - i, 1) for i, keys in enumerate(self._keys[1:], 1)]
        scores += [torch.einsum("blkgd,blkd->blkg", query, keys)[..., None] for keys in drafted]
        weights = torch.cat(scores, dim=-1).softmax(-1)
        out = torch.einsum("blkgm,bmkd->blkgd", weights[..., : true.shape[1]], self._values[0])
        for i, values in enumerate(self._values[1:], 1):
            own = weights[..., true.shape[1] + i - 1, None]
            out = out + own * torch.roll(values, step - i, 1)[:, :, :, None, :]
        return out
