"""Rotary embeddings whose factors follow the longest sequence of the batch, fixed once.

With dynamic NTK and LongRoPE a model's own forward picks its frequencies by the highest position of the pass, so a
request's output would depend on its batch-mates. They are picked once instead, for the longest sequence that will be
served, and written into the configuration, from which cache identities are made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from paceline.model.errors import UnsupportedModelError

__all__ = ["FIXED_KEY", "fix_rope", "rope_groups"]

FIXED_KEY = "fixed_for_num_positions"
_FIXED_TYPE = "default"


def rope_groups(config: PretrainedConfig) -> list[dict[str, Any]]:
    """The RoPE settings of a language model: one set, or one of each type of layer. They are not copies."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict) and "rope_type" in value]
    return nested or ([parameters] if parameters.get("rope_type") else [])


def fix_rope(model: PreTrainedModel, config: PretrainedConfig, num_positions: int) -> None:
    """Fix what would follow the batch as it is for a sequence of ``num_positions``; changes model and config.

    Args:
        model: On its device.
        config: That of its language model.
        num_positions: Longest sequence to be served, in tokens.

    Raises:
        UnsupportedModelError: if the configuration asks for such a RoPE and no module of the model is known to do it.
    """
    following = [group for group in rope_groups(config) if _follows_batch(group["rope_type"])]
    if not following:
        return
    modules = [module for module in model.modules() if _has_following_type(module)]
    if not modules:
        raise UnsupportedModelError(
            f'model "{model.name_or_path}" (type "{config.model_type}") uses RoPE of type '
            f'"{following[0]["rope_type"]}", whose factors follow the longest sequence of the batch, and none of its '
            'modules lets them be fixed; set rope_parameters to type "yarn", "linear" or "default" in its config.json'
        )
    for module in modules:
        _fix_module(module, num_positions, model.device)
    for group in following:
        group[FIXED_KEY] = num_positions


@torch.inference_mode(False)
def _fix_module(module: nn.Module, num_positions: int, device: torch.device) -> None:
    """Let the module pick its factors in a pass at the last position, then take away what picks them."""
    hidden, last = torch.zeros(1, 1, 1, device=device), torch.tensor([[num_positions - 1]], device=device)
    if not isinstance(module.rope_type, dict):
        module(hidden, last)
        module.rope_type = _FIXED_TYPE
        return
    for layer_type, rope_type in module.rope_type.items():
        if _follows_batch(rope_type):
            module(hidden, last, layer_type)
            module.rope_type[layer_type] = _FIXED_TYPE


def _has_following_type(module: nn.Module) -> bool:
    kind = getattr(module, "rope_type", None)
    kinds = kind.values() if isinstance(kind, dict) else [kind]
    return any(isinstance(one, str) and _follows_batch(one) for one in kinds)


def _follows_batch(rope_type: str) -> bool:
    return "dynamic" in rope_type or rope_type == "longrope"
