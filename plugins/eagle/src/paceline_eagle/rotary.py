"""Rotary position encoding of a head, by transformers' own tables."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from paceline_eagle.config import HeadConfig

__all__ = ["Rotary"]


class Rotary:
    """Turns queries and keys (Su et al. 2021). No module, so that casting a head leaves its frequencies alone."""

    def __init__(self, config: HeadConfig) -> None:
        llama = LlamaConfig(
            hidden_size=config.num_heads * config.head_size,  # which must be a multiple; nothing else reads it
            num_attention_heads=config.num_heads,
            head_dim=config.head_size,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters=dict(config.rope),
        )
        with torch.device("cpu"):  # also for a head that is built without memory
            self._tables = LlamaRotaryEmbedding(llama)

    def rotate(self, positions: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """``[T, heads, size]`` each, at int64 positions ``[T]``."""
        self._tables.to(positions.device)
        cos, sin = (side[0, :, None] for side in self._tables(queries, positions[None]))
        return _turned(queries, cos, sin), _turned(keys, cos, sin)


def _turned(values: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = values.chunk(2, dim=-1)
    return values * cos + torch.cat((-right, left), dim=-1) * sin
