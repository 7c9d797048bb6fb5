"""Mixtures of experts whose rows do not depend on the batch."""

from __future__ import annotations

import torch
from torch import nn

from paceline.ops.exact import exact_mm, padded_columns, row_tiles

__all__ = ["ExactExperts", "is_experts"]


def is_experts(module: nn.Module) -> bool:
    """Whether a module goes through transformers' experts interface: stacked weights, described by attributes."""
    return hasattr(module, "is_transposed") and hasattr(module, "has_bias") and hasattr(module, "down_proj")


class ExactExperts(nn.Module):
    """Stands for a module of the experts interface; float32 on CPU, used inside `ExactFunctions`.

    Each expert runs its rows in zero-padded tiles, and the results of a token are added up in the order in which its
    router ranked the experts.

    Raises:
        NumericsError: if a matrix has no row count that keeps its bits.
    """

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.experts = experts
        name = "gate_up_proj" if experts.has_gate else "up_proj"
        self._activate = experts._apply_gate if experts.has_gate else experts.act_fn
        self._after = experts.post_expert_norm if getattr(experts, "has_post_expert_norm", False) else nn.Identity()
        self._up = _Stacked(experts, name)
        self._down = _Stacked(experts, "down_proj")

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """hidden_states [T, hidden], top_k_index and top_k_weights [T, K] -> [T, hidden]."""
        num_rows, num_choices = top_k_index.shape
        chosen = top_k_index.reshape(-1)
        outs = hidden_states.new_empty(len(chosen), self._down.num_columns)
        for expert in chosen.unique().tolist():
            pairs = (chosen == expert).nonzero().squeeze(1)
            inner = self._activate(self._up(expert, hidden_states[pairs // num_choices]))
            outs[pairs] = self._after(self._down(expert, inner))
        weighted = outs.view(num_rows, num_choices, -1) * top_k_weights.unsqueeze(-1)
        total = weighted[:, 0]
        for choice in range(1, num_choices):
            total = total + weighted[:, choice]
        return total


class _Stacked:
    """One linear layer of every expert, each stored as [in, out]; the module's own tensor becomes a view of it."""

    def __init__(self, experts: nn.Module, name: str) -> None:
        parameter = getattr(experts, name)
        weights = parameter.detach() if experts.is_transposed else parameter.detach().mT
        self.num_columns = weights.shape[2]
        self._weights = padded_columns(weights)
        own = self._weights[..., : self.num_columns]
        parameter.data = own if experts.is_transposed else own.mT
        self._bias = getattr(experts, f"{name}_bias").detach() if experts.has_bias else None
        self._tiles = row_tiles(weights.shape[1], self.num_columns)

    def __call__(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        out = exact_mm(rows, self._weights[expert], self._tiles, self.num_columns)
        return out if self._bias is None else out + self._bias[expert]
