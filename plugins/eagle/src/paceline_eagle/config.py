"""What an EAGLE head is made of, whichever published format it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["EAGLE", "EAGLE3", "FINAL", "HeadConfig", "Version"]

Version = Literal["eagle", "eagle3"]
EAGLE: Version = "eagle"
EAGLE3: Version = "eagle3"
FINAL = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """Sizes and variants of a head of one decoder layer.

    Attributes:
        version: ``"eagle"`` (EAGLE-1 and EAGLE-2) or ``"eagle3"``.
        hidden_size: Width ``H`` of the head's own state.
        target_hidden_size: Width of the target's features.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_size: Width of a head.
        intermediate_size: Width inside the MLP.
        rms_norm_eps: Added to the mean square in every norm.
        rope: transformers' ``rope_parameters``: ``rope_type``, ``rope_theta`` and what the type needs.
        max_position_embeddings: Context the head was made for; some types of RoPE read it.
        vocab_size: Token ids of the target, padded ones included.
        draft_vocab_size: Token ids that the head gives logits for.
        aux_layers: Features that it reads: ``i`` = the residual stream entering the target's layer ``i``,
            ``"final"`` = after the last norm, which is all that an EAGLE-1 head reads.
        hidden_act: transformers' name of the MLP's activation.
        own_embedding: Whether it embeds tokens by itself; otherwise the target does.
        fc_bias: Whether ``fc`` has a bias.
        qkv_bias: Whether the query, key and value projections have one.
        output_bias: Whether the attention's output projection has one.
        qk_norm: Whether queries and keys are normed head by head (Qwen3 layers).
        layernorms: EAGLE-1 only: norms of the embedding, before the attention and before the target's LM head.
        norm_before_residual: EAGLE-3 only: the residual is the normed feature.
        norm_before_fc: EAGLE-3 only: one norm over the joined features.
        fc_norm: EAGLE-3 only: one norm for each feature.
        norm_output: EAGLE-3 only: the state that the next step reads is the normed one.
    """

    version: Version
    hidden_size: int
    target_hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    rms_norm_eps: float
    rope: Mapping[str, Any]
    max_position_embeddings: int
    vocab_size: int
    draft_vocab_size: int
    aux_layers: tuple[int | str, ...]
    hidden_act: str = "silu"
    own_embedding: bool = False
    fc_bias: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    layernorms: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
