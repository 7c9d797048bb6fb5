"""The head that training starts from: the target's last layer, its final norm and its output rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from paceline.api import PluginError, TargetFacts
from paceline_eagle.config import EAGLE3, HeadConfig
from paceline_eagle.head import Head

__all__ = ["TargetWeights", "head_config", "initial_head"]

_NEEDED = (
    "num_attention_heads",
    "intermediate_size",
    "rms_norm_eps",
    "rope_parameters",
    "max_position_embeddings",
    "vocab_size",
)
_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_COPIED = {
    "self_attn.o_proj.weight": "layer.self_attn.o_proj.weight",
    "mlp.gate_proj.weight": "layer.mlp.gate_proj.weight",
    "mlp.up_proj.weight": "layer.mlp.up_proj.weight",
    "mlp.down_proj.weight": "layer.mlp.down_proj.weight",
    "input_layernorm.weight": "layer.hidden_norm.weight",
    "post_attention_layernorm.weight": "layer.post_attention_layernorm.weight",
}


class TargetWeights:
    """The target's tensors by the end of their names, float32 on the host.

    Args:
        checkpoint: All of them, by their whole names.
    """

    def __init__(self, checkpoint: Mapping[str, Any]) -> None:
        self._checkpoint = checkpoint

    def get(self, ending: str) -> Any:
        """The one whose name ends so.

        Raises:
            PluginError: if there is none, or several.
        """
        names = [name for name in self._checkpoint if f".{name}".endswith(f".{ending}")]
        if len(names) != 1:
            raise PluginError(
                f'the target has {len(names)} tensors named "...{ending}", and the head starts from one; train for a '
                "target with the layers of Llama"
            )
        return self._checkpoint[names[0]].float()

    def output_rows(self, ids: np.ndarray) -> Any:
        """Rows ``[n, hidden]`` of the LM head, or of the embedding that it is tied to."""
        has_own = any(name.split(".")[-2:] == ["lm_head", "weight"] for name in self._checkpoint)
        return self.get("lm_head.weight" if has_own else "embed_tokens.weight")[torch.from_numpy(ids)]


def head_config(target: TargetFacts, layers: tuple[int, ...], draft_vocab_size: int) -> HeadConfig:
    """Sizes as the target's own layers have them.

    Raises:
        PluginError: if its configuration does not name them.
    """
    config = target.config
    missing = [key for key in _NEEDED if config.get(key) is None]
    if missing:
        raise PluginError(
            f"the target's configuration has no {' and no '.join(missing)}, which the head's layer takes from it; "
            "train for a target with the layers of Llama"
        )
    num_heads = int(config["num_attention_heads"])
    return HeadConfig(
        version=EAGLE3,
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_size=int(config.get("head_dim") or target.hidden_size // num_heads),
        intermediate_size=int(config["intermediate_size"]),
        rms_norm_eps=float(config["rms_norm_eps"]),
        rope=dict(config["rope_parameters"]),
        max_position_embeddings=int(config["max_position_embeddings"]),
        vocab_size=int(config["vocab_size"]),
        draft_vocab_size=draft_vocab_size,
        aux_layers=layers,
    )


def initial_head(config: HeadConfig, weights: TargetWeights, num_layers: int, ids: np.ndarray) -> Head:
    """A head that applies the target's last layer to the last feature once more, and does not read embeddings yet.

    Args:
        config: Sizes.
        weights: The target's.
        num_layers: Layers of the target.
        ids: int64 ``[draft vocab]``, the target's ids that it drafts.
    """
    head = Head(config, torch.from_numpy(ids))
    last = f"layers.{num_layers - 1}."
    tensors = {own: weights.get(last + name) for name, own in _COPIED.items()}
    for name in _PROJECTIONS:
        read = weights.get(f"{last}{name}.weight")
        tensors[f"layer.{name}.weight"] = torch.cat([torch.zeros_like(read), read], dim=1)
    size = config.hidden_size
    tensors["fc.weight"] = torch.zeros(size, len(config.aux_layers) * config.target_hidden_size)
    tensors["fc.weight"][:, -size:] = torch.eye(size)
    tensors["norm.weight"] = weights.get("model.norm.weight")
    tensors["lm_head.weight"] = weights.output_rows(ids)
    tensors["layer.input_layernorm.weight"] = torch.ones(size)
    head.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()})
    return head
