"""The head: one decoder layer that goes on from the target's features. Plain torch, differentiable."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from paceline_eagle.config import EAGLE, HeadConfig
from paceline_eagle.rotary import Rotary

__all__ = ["Attend", "Head"]

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(queries [T, heads, size], keys [T, kv_heads, size], values [T, kv_heads, size]) -> [T, heads, size]``."""


class RMSNorm(nn.Module):  # type: ignore[misc]
    """Llama's norm: the mean square in float32, the weight in the input's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """Norm over the last dimension."""
        values = hidden.float()
        values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + self._eps)
        return self.weight * values.to(hidden.dtype)


class SelfAttention(nn.Module):  # type: ignore[misc]
    """Projections, head norms and RoPE; where keys and values are kept is the caller's affair."""

    def __init__(self, config: HeadConfig, input_size: int) -> None:
        super().__init__()
        query_size = config.num_heads * config.head_size
        kv_size = config.num_kv_heads * config.head_size
        self.q_proj = nn.Linear(input_size, query_size, bias=config.qkv_bias)
        self.k_proj = nn.Linear(input_size, kv_size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(input_size, kv_size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=config.output_bias)
        self.q_norm = RMSNorm(config.head_size, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head_size, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self._head_size = config.head_size
        self._rotary = Rotary(config)

    def forward(self, inputs: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """``[T, input size] -> [T, H]``."""
        split = (len(inputs), -1, self._head_size)
        queries = self.q_norm(self.q_proj(inputs).view(split))
        keys = self.k_norm(self.k_proj(inputs).view(split))
        queries, keys = self._rotary.rotate(positions, queries, keys)
        return self.o_proj(attend(queries, keys, self.v_proj(inputs).view(split)).flatten(1))


class MLP(nn.Module):  # type: ignore[misc]
    """Llama's gated MLP."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self._activation = ACT2FN[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        """``[T, H] -> [T, H]``."""
        gated: Tensor = self.down_proj(self._activation(self.gate_proj(hidden)) * self.up_proj(hidden))
        return gated


class Layer(nn.Module):  # type: ignore[misc]
    """The decoder layer's parts; the two versions join them differently before the attention."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        is_eagle = config.version == EAGLE
        has_input_norm = config.layernorms or not is_eagle
        self.input_layernorm = RMSNorm(size, eps) if has_input_norm else nn.Identity()
        self.hidden_norm = nn.Identity() if is_eagle else RMSNorm(size, eps)
        self.self_attn = SelfAttention(config, size if is_eagle else 2 * size)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = MLP(config)

    def forward(self, inputs: Tensor, residual: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The attention's inputs ``[T, H or 2H]`` and the residual stream ``[T, H]`` to the stream after the layer."""
        hidden = residual + self.self_attn(inputs, positions, attend)
        after: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return after


class Head(nn.Module):  # type: ignore[misc]
    """An EAGLE head (Li et al. 2024, EAGLE and EAGLE-2; 2025, EAGLE-3).

    From the token at ``s`` and the feature of ``s - 1`` it makes a state that predicts the token at ``s + 1``, and
    that stands for the feature of ``s`` where the target has not been.

    Attributes:
        config: What it is made of.
        embed_tokens: Its own embedding, or ``None``: the target's is used.
        lm_head: Its own LM head, or ``None``: the target's is used on ``readout(state)``.
        draft_to_target: int64 ``[draft vocab]``, the target's id of each id of the head; ``None`` = they are the same.
    """

    draft_to_target: Tensor | None

    def __init__(self, config: HeadConfig, draft_to_target: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        size, eps = config.hidden_size, config.rms_norm_eps
        self._is_eagle = config.version == EAGLE
        self.embed_tokens = nn.Embedding(config.vocab_size, size) if config.own_embedding else None
        num_inputs = 2 * size if self._is_eagle else len(config.aux_layers) * config.target_hidden_size
        self.fc = nn.Linear(num_inputs, size, bias=config.fc_bias)
        self.input_norm = RMSNorm(num_inputs, eps) if config.norm_before_fc else nn.Identity()
        self.fc_norm = nn.ModuleList(
            RMSNorm(config.target_hidden_size, eps) for _ in config.aux_layers if config.fc_norm
        )
        self.embedding_norm = RMSNorm(size, eps) if config.layernorms else nn.Identity()
        self.layer = Layer(config)
        has_norm = config.layernorms or not self._is_eagle
        self.norm = RMSNorm(size, eps) if has_norm else nn.Identity()
        self.lm_head = None if self._is_eagle else nn.Linear(size, config.draft_vocab_size, bias=False)
        self.register_buffer("draft_to_target", draft_to_target, persistent=False)

    def use_linears(self, make: Callable[[Tensor, Tensor | None], nn.Module]) -> None:
        """Replace the linear layers by others of the same weights, for inference.

        Args:
            make: ``(weight [out, in], bias [out] or None) -> module``.
        """
        for parent in list(self.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, name, make(child.weight, child.bias))

    def fuse(self, features: Sequence[Tensor]) -> Tensor:
        """Features of ``config.aux_layers``, ``[T, target hidden]`` each, to what ``forward`` takes as ``hidden``."""
        if self._is_eagle:
            return features[0]
        if self.config.fc_norm:
            features = [norm(feature) for norm, feature in zip(self.fc_norm, features, strict=True)]
        fused: Tensor = self.fc(self.input_norm(torch.cat(list(features), dim=-1)))
        return fused

    def forward(self, embeddings: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """One step for ``T`` rows.

        Args:
            embeddings: ``[T, H]``, of the tokens at ``s``.
            hidden: ``[T, H]``, fused features of ``s - 1``, or the states of an earlier step in their place.
            positions: int64 ``[T]``, ``s - 1``: RoPE counts features, as in training.
            attend: Keeps the rows' keys and values and attends.

        Returns:
            The states ``[T, H]``.
        """
        if self._is_eagle:
            residual = self.fc(torch.cat([self.embedding_norm(embeddings), hidden], dim=-1))
            inputs = self.layer.input_layernorm(residual)
        else:
            normed = self.layer.hidden_norm(hidden)
            residual = normed if self.config.norm_before_residual else hidden
            inputs = torch.cat([self.layer.input_layernorm(embeddings), normed], dim=-1)
        state: Tensor = self.layer(inputs, residual, positions, attend)
        return self.norm(state) if self.config.norm_output else state

    def readout(self, state: Tensor) -> Tensor:
        """What an LM head reads of states ``[T, H]``."""
        return state if self.config.norm_output else self.norm(state)

    def logits(self, state: Tensor) -> Tensor:
        """Logits ``[T, draft vocab]`` of states ``[T, H]``; only of a head that has its own LM head."""
        assert self.lm_head is not None, "this head reads out through the target's LM head"
        logits: Tensor = self.lm_head(self.readout(state))
        return logits
