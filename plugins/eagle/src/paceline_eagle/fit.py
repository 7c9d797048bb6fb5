"""Whether a head is whole and fits the target."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.api import PluginError, TargetFacts
from paceline_eagle.config import HeadConfig
from paceline_eagle.formats import DRAFT_TO_TARGET, TARGET_TO_DRAFT
from paceline_eagle.head import Head

__all__ = ["check_shapes", "check_target", "target_ids"]

_TABLES = frozenset({DRAFT_TO_TARGET, TARGET_TO_DRAFT})


def check_shapes(config: HeadConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare the tensors of a checkpoint with those that its configuration asks for.

    Raises:
        PluginError: naming the missing and the superfluous tensors, or the first of a wrong shape.
    """
    with torch.device("meta"):
        wanted = {name: tuple(tensor.shape) for name, tensor in Head(config).state_dict().items()}
    missing, extra = sorted(wanted.keys() - shapes.keys()), sorted(shapes.keys() - wanted.keys() - _TABLES)
    if missing or extra:
        raise PluginError(
            f"of the tensors of {_a(config)} head there are missing: {', '.join(missing) or 'none'}; "
            f"not part of it: {', '.join(extra) or 'none'}; check that config.json belongs to these weights"
        )
    for name, shape in wanted.items():
        if shapes[name] != shape:
            raise PluginError(
                f"the tensor {name} has the shape {list(shapes[name])}, by config.json it must be {list(shape)}; "
                "check that config.json belongs to these weights"
            )


def _a(config: HeadConfig) -> str:
    return "an EAGLE-3" if config.version == "eagle3" else "an EAGLE"


def check_target(config: HeadConfig, target: TargetFacts) -> None:
    """Compare a head's sizes with the target's.

    Raises:
        PluginError: naming the size that differs.
    """
    if config.target_hidden_size != target.hidden_size:
        raise PluginError(
            f"it reads features of width {config.target_hidden_size}, the target's are {target.hidden_size} wide; "
            "choose a head that was trained for this target"
        )
    if not config.own_embedding and config.hidden_size != target.hidden_size:
        raise PluginError(
            f"it is {config.hidden_size} wide and has no embedding of its own, the target's is {target.hidden_size} "
            "wide; choose a head that was trained for this target"
        )
    padded_size = target.config.get("vocab_size", target.vocab_size)
    if config.vocab_size not in (target.vocab_size, padded_size):
        raise PluginError(
            f"it knows {config.vocab_size} token ids, the target {target.vocab_size}; "
            "choose a head that was trained for this target"
        )
    for layer in config.aux_layers:
        if isinstance(layer, int) and not 0 <= layer < target.num_layers:
            raise PluginError(
                f"it reads the features that enter layer {layer}, the target has layers 0 to {target.num_layers - 1}; "
                "choose a head that was trained for this target"
            )


def target_ids(config: HeadConfig, target: TargetFacts, offsets: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """The target's id of each id of the head, int64 ``[draft vocab]``; ``None`` if they are the same.

    Args:
        config: Of the head.
        target: Whose ids they are.
        offsets: ``d2t``: ``[draft vocab]``, what is to be added to each id of the head.
        mask: ``t2d``: bool ``[vocab]``, which of the target's ids the head knows; optional.

    Raises:
        PluginError: if ``offsets`` are missing, leave the vocabulary, name an id twice or contradict ``mask``.
    """
    size = config.draft_vocab_size
    if size == config.vocab_size:
        return None
    if offsets is None or tuple(offsets.shape) != (size,):
        shape = "missing" if offsets is None else f"of the shape {list(offsets.shape)}"
        raise PluginError(f"it gives logits for {size} of {config.vocab_size} ids, but the table d2t is {shape}")
    ids = torch.arange(size) + offsets.to("cpu", torch.int64)
    if int(ids.min()) < 0 or int(ids.max()) >= target.vocab_size:
        raise PluginError(
            f"the table d2t leads to ids from {int(ids.min())} to {int(ids.max())}, the target has 0 to "
            f"{target.vocab_size - 1}; choose a head that was trained for this target"
        )
    if len(ids.unique()) < size:
        raise PluginError("the table d2t leads to the same id of the target twice; it holds offsets, not ids")
    if mask is not None and not torch.equal(mask.bool().nonzero().flatten(), ids.sort().values):
        raise PluginError("the tables d2t and t2d disagree about which of the target's ids the head knows")
    return ids
