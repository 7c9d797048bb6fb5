"""The KV of a head: one layer in the slots of the target's own tokens."""

from __future__ import annotations

import hashlib

from paceline.api import KVGroup, TargetFacts
from paceline_eagle.checkpoint import HeadFiles

__all__ = ["KV_GROUP", "head_kv_group"]

KV_GROUP = "eagle"


def head_kv_group(files: HeadFiles, target: TargetFacts) -> KVGroup:
    """The group that holds a head's entries; its fingerprint is that of the head's content."""
    config = files.config
    return KVGroup(
        name=KV_GROUP,
        num_layers=1,
        num_kv_heads=config.num_kv_heads,
        key_size=config.head_size,
        value_size=config.head_size,
        dtype=target.dtype,
        fingerprint=hashlib.sha256(f"{files.fingerprint} {config}".encode()).hexdigest(),
    )
