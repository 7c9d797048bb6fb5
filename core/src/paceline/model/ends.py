"""The two ends of a causal LM alone: what turns ids into the input of layer 0, and final hidden states into logits.

Both run the model's own forward, so they have its scaling, its projections and its soft-cap, whatever they are.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from paceline.model.architecture import decoder_layers

__all__ = ["Embedding", "project"]


class _DecoderOutput(BaseModelOutputWithPast):
    """Final hidden states; whatever else a model's forward passes on is None."""

    def __getattr__(self, name: str) -> None:
        return None


class _LayerReachedError(Exception):
    """Carries what entered layer 0 out of the forward."""


class Embedding:
    """Ids to the input of layer 0, less what the position adds to it (absolute positions)."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._lookup = model.get_input_embeddings()
        looked_up = self._lookup(torch.zeros(1, dtype=torch.int64, device=model.device))
        self._position_part = self._entering(inputs_embeds=torch.zeros_like(looked_up)[None])
        self._is_lookup = self._suffices(torch.arange(min(4, self._lookup.weight.shape[0]), device=model.device))

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """int64 ``[n]`` to ``[n, hidden]``."""
        return self._lookup(ids) if self._is_lookup else self._entering(input_ids=ids[None]) - self._position_part

    def _suffices(self, ids: torch.Tensor) -> bool:
        """Whether the lookup alone gives what enters layer 0, which spares the forward."""
        return torch.equal(self._lookup(ids), self._entering(input_ids=ids[None]))

    def _entering(self, **inputs: torch.Tensor) -> torch.Tensor:
        """What enters layer 0 of rows that all stand at position 0."""
        given = next(iter(inputs.values()))
        positions = torch.zeros(given.shape[:2], dtype=torch.int64, device=given.device)
        hook = decoder_layers(self._model)[0].register_forward_pre_hook(_stop, with_kwargs=True)
        try:
            self._model(**inputs, position_ids=positions, use_cache=False)
        except _LayerReachedError as reached:
            return reached.args[0][0]
        finally:
            hook.remove()
        raise AssertionError("layer 0 was not reached")


def project(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Logits float32 ``[n, vocab]`` of final hidden states ``[n, hidden]``."""
    decoder = model.get_decoder()
    ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
    decoder.forward = lambda *args, **kwargs: _DecoderOutput(last_hidden_state=hidden[None])
    try:
        return model(input_ids=ids, use_cache=False).logits[0].float()
    finally:
        del decoder.forward


def _stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
    raise _LayerReachedError(args[0] if args else kwargs["hidden_states"])
