"""What a proposer gets when it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from paceline.api import KVGroup, KVView, PagedModel, TargetFacts
from paceline.engine.draft_attention import DraftAttention, draft_batch
from paceline.engine.errors import EngineError
from paceline.engine.paged_model import GroupView, RunnerModel
from paceline.kv.manager import KVManager
from paceline.kv.storage import KVStorage
from paceline.model.architecture import max_positions, target_kv_group
from paceline.model.checkpoint_tensors import CheckpointTensors
from paceline.model.layers import with_layers
from paceline.model.load_check import check_model
from paceline.model.loading import LoadedModel
from paceline.model.runner import ModelRunner
from paceline.ops.packed_linear import packed_beside, plain_linear
from paceline.ops.select import Ops

__all__ = ["EngineContext"]

TARGET = "target"


class EngineContext:
    """``paceline.api.ProposerContext`` over an engine's parts.

    Args:
        facts: About the target.
        target: The target's weights; ``load_model("target", ...)`` shares them.
        runner: The target's runner.
        load: Loads another checkpoint on the target's device, in its dtype and numerics.
        groups: The groups that the proposer described.
        storage: The KV tensors of all groups.
        kv: Block bookkeeping.
        ops: Attention bodies.
    """

    def __init__(
        self,
        *,
        facts: TargetFacts,
        target: LoadedModel,
        runner: ModelRunner,
        load: Callable[[str], LoadedModel],
        groups: Sequence[KVGroup],
        storage: KVStorage,
        kv: KVManager,
        ops: Ops,
    ) -> None:
        self._facts = facts
        self._target = target
        self._runner = runner
        self._load = load
        self._groups = {group.name: group for group in groups}
        self._storage = storage
        self._kv = kv
        self._ops = ops

    @property
    def target(self) -> TargetFacts:
        """Facts about the target."""
        return self._facts

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer, or ``None``."""
        return self._target.tokenizer

    def open_checkpoint(self) -> Mapping[str, torch.Tensor]:
        """The target's tensors by name, each read when it is asked for."""
        return CheckpointTensors(self._target.checkpoint)

    def embed(self, ids: Any) -> torch.Tensor:
        """Target embeddings of int64 ``[n]``."""
        return self._runner.embed(ids)

    def logits(self, hidden: Any) -> torch.Tensor:
        """Target logits of final hidden states ``[n, hidden]``."""
        return self._runner.logits(hidden)

    def attention(
        self,
        view: KVView,
        *,
        row_request: np.ndarray,
        slots: np.ndarray,
        visible: np.ndarray | None = None,
        paths: np.ndarray | None = None,
        first: int = 0,
    ) -> DraftAttention:
        """Attention for one forward of the proposer's own layers.

        Raises:
            PluginError: if a row would read what nobody wrote, or has no slot of its own.
        """
        assert isinstance(view, GroupView), "a view that this engine did not make"
        batch = draft_batch(
            self._kv,
            view,
            self._target.device,
            row_request=row_request,
            slots=slots,
            visible=slots + 1 if visible is None else visible,
            paths=paths,
            first=first,
        )
        return DraftAttention(self._storage.layers(view.group), self._ops, batch)

    @torch.inference_mode()
    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.nn.Module:
        """A linear layer as the target's own are."""
        if self._target.native is not None and weight.dtype == torch.float32:
            [packed] = packed_beside(self._target.native, [weight.detach()], [bias])
            return packed
        return plain_linear(weight, bias)

    def load_model(self, path: str, kv_group: str, layers: Sequence[int] | None = None) -> PagedModel:
        """A causal LM whose KV lives in ``kv_group``, or some of its layers.

        Raises:
            EngineError: if the group was not described, or the model's layers do not fit it.
        """
        loaded = self._target if path == TARGET else self._load(path)
        group = self._group(kv_group)
        served = loaded if layers is None else with_layers(loaded, layers)
        self._check_fit(served, group)
        if loaded is not self._target:
            check_model(loaded, self._ops, self._max_positions(loaded))
        runner = ModelRunner(served, self._storage.layers(kv_group), self._ops)
        return RunnerModel(served, runner, self._kv, self._max_positions(loaded))

    def _max_positions(self, loaded: LoadedModel) -> int:
        return max_positions(loaded.config) or self._facts.max_model_len

    def _group(self, name: str) -> KVGroup:
        if name not in self._groups:
            raise EngineError(f'KV group "{name}" was not described; put it into ProposerCapabilities.kv_groups')
        return self._groups[name]

    def _check_fit(self, loaded: LoadedModel, group: KVGroup) -> None:
        shape = target_kv_group(loaded.config, dtype=loaded.dtype, fingerprint=group.fingerprint, name=group.name)
        needed = replace(shape, private=group.private)
        if needed != group:
            raise EngineError(
                f'KV group "{group.name}" was described as {group}, but "{loaded.name}" needs {needed}; '
                "describe the group from the model's configuration"
            )
