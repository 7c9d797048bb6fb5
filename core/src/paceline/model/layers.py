"""A model of some of another's layers: the same modules, no weight copied."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from paceline.model.architecture import decoder_layers, text_config
from paceline.model.errors import UnsupportedModelError
from paceline.model.loading import LoadedModel

__all__ = ["with_layers"]


def with_layers(loaded: LoadedModel, layer_ids: Sequence[int]) -> LoadedModel:
    """The model that runs the given layers of another between its embedding and its final norm.

    Modules above the list of layers are shallow copies, everything else is shared, so that either may run while the
    other does not. Settings that the configuration has for each layer are those of the given ones.

    Args:
        loaded: The whole model; it is not changed.
        layer_ids: Numbers of layers, ascending.

    Raises:
        UnsupportedModelError: if there are none, they do not ascend, or the model lacks one.
    """
    count = len(decoder_layers(loaded.model))
    _check_layer_ids(loaded.name, layer_ids, count)
    model = _reduced(loaded.model, layer_ids, count)
    return replace(loaded, model=model, config=model.config, layer_ids=tuple(layer_ids))


def _check_layer_ids(name: str, layer_ids: Sequence[int], count: int) -> None:
    ascends = list(layer_ids) == sorted(set(layer_ids))
    if not layer_ids or not ascends or layer_ids[0] < 0 or layer_ids[-1] >= count:
        raise UnsupportedModelError(
            f'layers {list(layer_ids)} of "{name}" were asked for; give some of its layers 0 to {count - 1}, ascending'
        )


def _reduced(model: PreTrainedModel, layer_ids: Sequence[int], count: int) -> PreTrainedModel:
    layers, decoder = decoder_layers(model), model.get_decoder()
    config = _reduced_config(model.config, layer_ids, count)
    path = next(name for name, module in model.named_modules() if module is decoder)
    reduced = parent = _shallow(model, config)
    for name in path.split("."):
        child = _shallow(getattr(parent, name), config)
        setattr(parent, name, child)
        parent = child
    [attribute] = [name for name, child in decoder.named_children() if child is layers]
    setattr(parent, attribute, nn.ModuleList([layers[layer_id] for layer_id in layer_ids]))
    return reduced


def _reduced_config(config: PretrainedConfig, layer_ids: Sequence[int], count: int) -> PretrainedConfig:
    reduced = copy.deepcopy(config)
    text = text_config(reduced)
    for name, value in list(vars(text).items()):
        if "layer" in name and isinstance(value, list) and len(value) == count:
            setattr(text, name, [value[layer_id] for layer_id in layer_ids])
    text.num_hidden_layers = len(layer_ids)
    return reduced


def _shallow(module: PreTrainedModel, config: PretrainedConfig) -> PreTrainedModel:
    """A copy with tables of its own (children, parameters, hooks), whose entries are shared."""
    other = copy.copy(module)
    other.__dict__ = {name: copy.copy(v) if isinstance(v, dict) else v for name, v in module.__dict__.items()}
    other.config = config if type(config) is type(module.config) else text_config(config)
    return other
