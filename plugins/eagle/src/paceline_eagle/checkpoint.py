"""Heads on disk: reading, and writing in the published formats."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.api import PluginError, TargetFacts
from paceline_eagle.config import EAGLE3, HeadConfig
from paceline_eagle.config_files import eagle_config, speculators_config
from paceline_eagle.files import StoredTensor, find_folder, fingerprint, read_json, stored_tensors, weight_files
from paceline_eagle.fit import check_shapes, check_target, target_ids
from paceline_eagle.formats import DRAFT_TO_TARGET, TARGET_TO_DRAFT, canonical_names, read_config
from paceline_eagle.head import Head

__all__ = ["Format", "HeadFiles", "find_head", "load_head", "save_head"]

Format = Literal["eagle", "speculators"]


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """A head that was found, is whole and fits the target in its sizes.

    Attributes:
        name: As the user gave it.
        config: What it is made of.
        fingerprint: Hex digest of the content of its files.
        tensors: By the head's own names, unread.
    """

    name: str
    config: HeadConfig
    fingerprint: str
    tensors: Mapping[str, StoredTensor]

    def load(self, target: TargetFacts) -> Head:
        """The head in the target's dtype and on its device, for inference.

        Raises:
            PluginError: if its tables of ids contradict each other or leave the target's vocabulary.
        """
        tensors = {name: stored.read() for name, stored in self.tensors.items()}
        offsets, mask = tensors.pop(DRAFT_TO_TARGET, None), tensors.pop(TARGET_TO_DRAFT, None)
        try:
            ids = target_ids(self.config, target, offsets, mask)
        except PluginError as error:
            raise _of(self.name, error) from error
        with torch.device("meta"):
            head = Head(self.config)
        dtype = getattr(torch, target.dtype)
        head.load_state_dict({name: each.to(target.device, dtype) for name, each in tensors.items()}, assign=True)
        head.draft_to_target = None if ids is None else ids.to(target.device)
        head.requires_grad_(False).eval()
        return head


def find_head(name: str, target: TargetFacts) -> HeadFiles:
    """Read what a head is made of, and check it against the target. No weight is read but for the digest.

    Args:
        name: Folder, hub id, or ``"demo"`` for the head that comes with this package.
        target: The model that it is to draft for.

    Raises:
        PluginError: if it cannot be found or read, is of an unsupported kind, or does not fit the target.
    """
    try:
        folder = find_folder(name)
        files = weight_files(folder)
        stored = {key: tensor for file in files for key, tensor in stored_tensors(file).items()}
        tensors = {canonical: stored[origin] for canonical, origin in canonical_names(stored).items()}
        shapes = {key: tensor.shape for key, tensor in tensors.items()}
        config = read_config(read_json(folder / "config.json"), shapes, target.num_layers)
        check_shapes(config, shapes)
        check_target(config, target)
    except PluginError as error:
        raise _of(name, error) from error
    return HeadFiles(name, config, fingerprint([folder / "config.json", *files]), tensors)


def _of(name: str, error: PluginError) -> PluginError:
    return PluginError(f'EAGLE head "{name}": {error.message}')


def load_head(name: str, target: TargetFacts) -> Head:
    """Find and load a head.

    Raises:
        PluginError: see ``find_head`` and ``HeadFiles.load``.
    """
    return find_head(name, target).load(target)


def save_head(
    head: Head,
    folder: Path,
    *,
    target_name: str,
    format: Format = "eagle",
    dtype: torch.dtype = torch.float16,
) -> None:
    """Write an EAGLE-3 head as ``config.json`` and ``model.safetensors``.

    Args:
        head: What is written.
        folder: Made if it is not there.
        target_name: Hub id or folder of the model that it was trained for.
        format: Names and layout of the original EAGLE-3 code, or of the ``speculators`` library.
        dtype: Of the stored weights.
    """
    assert head.config.version == EAGLE3, "heads of EAGLE-1 are read, not written"
    folder.mkdir(parents=True, exist_ok=True)
    layer = {"eagle": "midlayer.", "speculators": "layers.0."}[format]
    tensors = {
        re.sub("^layer[.]", layer, name): tensor.detach().to("cpu", dtype).contiguous()
        for name, tensor in head.state_dict().items()
    }
    save_file(tensors | _id_tables(head), folder / "model.safetensors", metadata={"format": "pt"})
    raw = speculators_config(head.config, target_name) if format == "speculators" else eagle_config(head.config)
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")


def _id_tables(head: Head) -> dict[str, Tensor]:
    """``d2t`` (offsets) and ``t2d`` (mask) of a head with a vocabulary of its own."""
    if head.draft_to_target is None:
        return {}
    ids = head.draft_to_target.cpu()
    mask = torch.zeros(head.config.vocab_size, dtype=torch.bool)
    mask[ids] = True
    return {DRAFT_TO_TARGET: ids - torch.arange(len(ids)), TARGET_TO_DRAFT: mask}
