"""The size of the draft model's KV, from configurations alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.api import KVGroup, PluginError, TargetFacts

__all__ = ["KV_GROUP", "TARGET", "draft_kv_group"]

KV_GROUP = "draft_model"
TARGET = "target"


def draft_kv_group(
    model: str, target: TargetFacts, layers: tuple[int, ...] | None = None, private: bool = False
) -> KVGroup:
    """Return the group that holds the KV of a draft model.

    Args:
        model: ``"target"``, a folder, a ``.gguf`` file or a hub id.
        target: The target.
        layers: The layers of it that draft; ``None`` = all.
        private: Whether its positions are those of its own tokens.

    Raises:
        PluginError: if its configuration cannot be read or names no ordinary attention heads, or it lacks a layer.
    """
    if model == TARGET:
        config, weights = target.config, target.weights_fingerprint
    else:
        config, weights = _read_config(model)
    num_layers = _size(config, "num_hidden_layers", model)
    if layers is not None and layers[-1] >= num_layers:
        raise PluginError(f'layer {layers[-1]} of "{model}" is to draft, but it has layers 0 to {num_layers - 1} only')
    num_heads = _size(config, "num_attention_heads", model)
    head_size = config.get("head_dim") or _size(config, "hidden_size", model) // num_heads
    return KVGroup(
        name=KV_GROUP,
        num_layers=num_layers if layers is None else len(layers),
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        key_size=head_size,
        value_size=head_size,
        dtype=target.dtype,
        fingerprint=_digest({"config": dict(config), "weights": weights, "dtype": target.dtype, "layers": layers}),
        private=private,
    )


def _size(config: Mapping[str, Any], key: str, model: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise PluginError(
            f'the configuration of draft model "{model}" gives {key} = {value!r}, which must be a positive integer; '
            "choose a causal LM with ordinary attention"
        )
    return value


def _read_config(model: str) -> tuple[dict[str, Any], str]:
    """The configuration with its class's defaults, and what tells one version of the weights from another."""
    from transformers import AutoConfig

    path = Path(model)
    try:
        if path.suffix == ".gguf":
            config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        else:
            config = AutoConfig.from_pretrained(model)
    except (OSError, ValueError, ImportError) as error:
        raise PluginError(
            f'the configuration of draft model "{model}" cannot be read: {error}; give a folder, a GGUF file, '
            f'a hub id, or "{TARGET}" for the target\'s own weights'
        ) from error
    return config.get_text_config(decoder=True).to_dict(), _weights_version(path, getattr(config, "_commit_hash", None))


def _weights_version(path: Path, commit: str | None) -> str:
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return _digest({"path": str(path), "commit": commit, "files": stats})


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
