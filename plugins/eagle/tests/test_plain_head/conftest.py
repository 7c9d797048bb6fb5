"""A plain implementation of the published heads that shares no code with the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

PARTS = (
    "hidden_norm",
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn.q_norm",
    "self_attn.k_norm",
)


@dataclass
class Entries:
    """Keys and values of one sequence, with the slot of each."""

    slots: list[int] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def first(self, count: int) -> Entries:
        """A copy of the first ``count``."""
        return Entries(self.slots[:count], self.keys[:count], self.values[:count])


class PlainHead:
    """The published heads row by row, from the tensors by their published names; nothing is paged or batched."""

    def __init__(self, checkpoint: Any, embedding: Tensor, lm_head: Tensor) -> None:
        self.config, self.layer_config = checkpoint.config, checkpoint.layer_config
        self.tensors, self.prefix = checkpoint.tensors, checkpoint.prefix
        self.is_eagle3 = checkpoint.kind.endswith("eagle3")
        config = checkpoint.layer_config
        self.head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self.group = config["num_attention_heads"] // config["num_key_value_heads"]
        own = self.get("embed_tokens.weight") if self.is_eagle3 else None
        self.embedding = embedding if own is None else own
        self.target_lm_head = lm_head
        offsets = self.get("d2t") if self.get("d2t") is not None else self.get("draft_id_to_target_id")
        self.ids = torch.arange(len(embedding)) if offsets is None else torch.arange(len(offsets)) + offsets

    def entries(self) -> Entries:
        return Entries()

    def get(self, name: str) -> Tensor | None:
        return self.tensors.get(name, self.tensors.get(f"model.{name}"))

    def norm(self, hidden: Tensor, weight: Tensor | None) -> Tensor:
        if weight is None:
            return hidden
        return F.rms_norm(hidden, hidden.shape[-1:], weight, self.layer_config["rms_norm_eps"])

    def linear(self, name: str, hidden: Tensor) -> Tensor:
        bias = self.tensors.get(f"{self.prefix}{name}.bias")
        return F.linear(hidden, self.tensors[f"{self.prefix}{name}.weight"], bias)

    def fuse(self, features: Sequence[Tensor]) -> Tensor:
        if not self.is_eagle3:
            return features[0]
        if self.config.get("fc_norm"):
            features = [self.norm(each, self.get(f"fc_norm.{index}.weight")) for index, each in enumerate(features)]
        return F.linear(self.norm(torch.cat(list(features), -1), self.get("input_norm.weight")), self.get("fc.weight"))

    def turned(self, heads: Tensor, position: int) -> Tensor:
        half = heads.shape[-1] // 2
        angles = position * self.layer_config["rope_theta"] ** (-torch.arange(half) / half)
        left, right = heads[:, :half], heads[:, half:]
        return torch.cat(
            [left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], dim=-1
        )

    def extend(self, entries: Entries, token: int, hidden: Tensor, slot: int) -> Tensor:
        """Add the entry of ``slot`` and return its state ``[H]``."""
        part = {name: self.tensors.get(f"{self.prefix}{name}.weight") for name in PARTS}
        embedded = self.embedding[token]
        if self.is_eagle3:
            normed = self.norm(hidden, part["hidden_norm"])
            residual = normed if self.config.get("norm_before_residual") else hidden
            inputs = torch.cat([self.norm(embedded, part["input_layernorm"]), normed])
        else:
            fc = "fusion_fc" if self.get("fusion_fc.weight") is not None else "fc"
            joined = torch.cat([self.norm(embedded, self.get("embedding_layernorm.weight")), hidden])
            residual = F.linear(joined, self.get(f"{fc}.weight"), self.get(f"{fc}.bias"))
            inputs = self.norm(residual, part["input_layernorm"])
        query, key, value = (self.linear(f"self_attn.{name}_proj", inputs).view(-1, self.head_size) for name in "qkv")
        query, key = self.norm(query, part["self_attn.q_norm"]), self.norm(key, part["self_attn.k_norm"])
        entries.slots.append(slot)
        entries.keys.append(self.turned(key, slot - 1).repeat_interleave(self.group, 0))
        entries.values.append(value.repeat_interleave(self.group, 0))
        keys, values = torch.stack(entries.keys), torch.stack(entries.values)
        weights = torch.einsum("hd,lhd->hl", self.turned(query, slot - 1), keys) / self.head_size**0.5
        mixed = torch.einsum("hl,lhd->hd", weights.softmax(-1), values).flatten()
        after = residual + self.linear("self_attn.o_proj", mixed)
        normed = self.norm(after, part["post_attention_layernorm"])
        gated = F.silu(self.linear("mlp.gate_proj", normed)) * self.linear("mlp.up_proj", normed)
        state = after + self.linear("mlp.down_proj", gated)
        return self.norm(state, self.get("norm.weight")) if self.config.get("norm_output") else state

    def logits(self, state: Tensor) -> Tensor:
        """``[draft vocab]``."""
        if not self.is_eagle3:
            return self.target_lm_head @ self.norm(state, self.get("pre_lm_head_layernorm.weight"))
        read = state if self.config.get("norm_output") else self.norm(state, self.get("norm.weight"))
        return self.tensors["lm_head.weight"] @ read


@pytest.fixture
def plain_head() -> type[PlainHead]:
    return PlainHead
