"""Configurations of EAGLE-3 heads as the published formats write them."""

from __future__ import annotations

from typing import Any

from paceline_eagle.config import HeadConfig

__all__ = ["EAGLE3_VARIANTS", "eagle_config", "speculators_config"]

EAGLE3_VARIANTS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def eagle_config(config: HeadConfig) -> dict[str, Any]:
    """``config.json`` of the original EAGLE-3 code, with vLLM's key for the features."""
    variants = {name: True for name in EAGLE3_VARIANTS if getattr(config, name)}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_layer_config(config),
        **_head_config(config),
        **variants,
    }


def speculators_config(config: HeadConfig, target_name: str) -> dict[str, Any]:
    """``config.json`` of the ``speculators`` library for the target of that name."""
    greedy = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"name_or_path": target_name, "architectures": []},
        },
        "transformer_layer_config": _layer_config(config),
        **_head_config(config),
        **{name: getattr(config, name) for name in EAGLE3_VARIANTS},
    }


def _head_config(config: HeadConfig) -> dict[str, Any]:
    return {
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(config.aux_layers),
    }


def _layer_config(config: HeadConfig) -> dict[str, Any]:
    scaling = {key: value for key, value in config.rope.items() if key != "rope_theta"}
    return {
        "model_type": "qwen3" if config.qk_norm else "llama",
        "num_hidden_layers": 1,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "hidden_act": config.hidden_act,
        "rms_norm_eps": config.rms_norm_eps,
        "attention_bias": config.qkv_bias,
        "max_position_embeddings": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "rope_theta": config.rope["rope_theta"],
        "rope_scaling": None if scaling["rope_type"] == "default" else scaling,
        "tie_word_embeddings": False,
    }
