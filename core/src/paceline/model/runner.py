"""One target pass over a flattened batch on the paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from paceline.model.architecture import attention_windows, decoder_layers, tapped
from paceline.model.bridge import StepContext
from paceline.model.ends import Embedding, project
from paceline.model.errors import UnsupportedModelError
from paceline.model.loading import LoadedModel
from paceline.model.plain_decoder import PlainDecoder
from paceline.ops.batch import AttentionBatch
from paceline.ops.exact_functions import ExactFunctions
from paceline.ops.select import Ops

__all__ = ["ForwardOutput", "ModelRunner"]

FINAL = "final"


@dataclass(slots=True)
class ForwardOutput:
    """What a pass gives, on the model's device.

    Attributes:
        logits: float32 ``[R, vocab]``, one row per row asked for.
        features: ``tap -> [T, hidden]`` in the model's dtype.
    """

    logits: torch.Tensor
    features: dict[int | str, torch.Tensor]


class ModelRunner:
    """Runs one loaded model on one set of KV layers. Several runners may share a model."""

    def __init__(
        self,
        loaded: LoadedModel,
        layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
        ops: Ops,
        taps: tuple[int | str, ...] = (),
    ) -> None:
        """Bind a model to its KV layers.

        Args:
            loaded: The model.
            layers: ``(k, v)`` per decoder layer, ``[num_blocks, block_size, kv_heads, head_size]``.
            ops: The attention body.
            taps: Hidden states to return: ``i`` = the residual stream entering layer ``i``, ``"final"`` = after the
                last norm.

        Raises:
            UnsupportedModelError: if a tap names no layer.
        """
        _check_taps(loaded, taps)
        self._model = loaded.model
        windows = attention_windows(loaded.config)
        layer_ids = range(len(windows)) if loaded.layer_ids is None else loaded.layer_ids
        self._layers = layers
        self._layers_by_id = dict(zip(layer_ids, layers, strict=True))
        self._windows = dict(zip(layer_ids, windows, strict=True))
        self._ops = ops
        self._taps = taps
        exact = loaded.numerics == "exact"
        self._arithmetic: AbstractContextManager[Any] = ExactFunctions() if exact else nullcontext()
        self._embedding: Embedding | None = None
        self._plain: PlainDecoder | None = None
        if loaded.is_plain and loaded.native is not None:
            self._plain = PlainDecoder(loaded.model, loaded.native, layers, taps)

    @torch.inference_mode()
    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch, logit_rows: torch.Tensor
    ) -> ForwardOutput:
        """Write the rows' KV, attend, and return logits of the rows asked for.

        Args:
            tokens: int64 ``[T]``.
            positions: int64 ``[T]``, for the position encoding.
            batch: Slots and visibility of the rows.
            logit_rows: int64 ``[R]``, indices of rows; may be empty.

        Returns:
            Logits and the tapped features; valid as long as they are held.
        """
        if self._plain is not None:
            with self._arithmetic:
                return ForwardOutput(*self._plain.forward(tokens, positions, batch, logit_rows))
        step = StepContext(batch=batch, layers=self._layers_by_id, windows=self._windows, ops=self._ops)
        with self._arithmetic, tapped(self._model, self._taps) as features:
            output = self._model(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=logit_rows,
                paceline_step=step,
            )
        return ForwardOutput(logits=output.logits[0].float(), features=features)

    @torch.inference_mode()
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings ``[n, hidden]`` of int64 ``[n]``, as they enter layer 0, less what the position adds to them."""
        with self._arithmetic:
            if self._embedding is None:
                self._embedding = Embedding(self._model)
            return self._embedding(ids)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 ``[n, vocab]`` of final hidden states ``[n, hidden]``, scaled and capped as the model's."""
        with self._arithmetic:
            return project(self._model, hidden)


def _check_taps(loaded: LoadedModel, taps: tuple[int | str, ...]) -> None:
    for tap in taps:
        if isinstance(tap, str) and tap != FINAL:
            raise UnsupportedModelError(f'hidden states "{tap}" are unknown; ask for layer numbers or "{FINAL}"')
        if isinstance(tap, int) and not 0 <= tap < len(decoder_layers(loaded.model)):
            raise UnsupportedModelError(
                f'hidden states entering layer {tap} were asked for, but "{loaded.name}" has layers 0 to '
                f'{len(decoder_layers(loaded.model)) - 1}; use "{FINAL}" for those after the last norm'
            )
