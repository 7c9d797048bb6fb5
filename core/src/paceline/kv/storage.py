"""The KV tensors of all groups, on one device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.api.errors import did_you_mean
from paceline.api.proposers import KVGroup
from paceline.kv.errors import KVGroupError, KVMemoryError

__all__ = ["KVStorage"]

_DTYPES = ("float32", "float16", "bfloat16", "float64")


def _dtype(group: KVGroup) -> torch.dtype:
    if group.dtype not in _DTYPES:
        raise KVGroupError(
            f'KV group "{group.name}" has dtype "{group.dtype}", which KV cannot have'
            + did_you_mean(group.dtype, _DTYPES)
        )
    dtype = getattr(torch, group.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


class KVStorage:
    """Paged K and V of every layer; a block id names the same block in all groups but private ones.

    Args:
        groups: The target's group (named ``"target"``) and those of proposers.
        num_blocks: Blocks of every layer.
        block_size: Tokens per block.
        device: Where the tensors live.

    Raises:
        KVGroupError: if two groups have one name, or a dtype is unknown.
        KVMemoryError: if the device has no room.
    """

    def __init__(self, groups: Sequence[KVGroup], num_blocks: int, block_size: int, device: torch.device | str) -> None:
        names = [group.name for group in groups]
        for name in names:
            if names.count(name) > 1:
                raise KVGroupError(f'{names.count(name)} KV groups are named "{name}"; give each its own name')
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.device = torch.device(device)
        self.bytes_per_block = self.block_bytes(groups, block_size)
        self._layers = {group.name: self._allocate(group) for group in groups}
        self._shared = [group.name for group in groups if not group.private]

    @staticmethod
    def block_bytes(groups: Sequence[KVGroup], block_size: int) -> int:
        """Bytes of one block in all layers of all groups."""
        return sum(
            block_size * g.num_layers * g.num_kv_heads * (g.key_size + g.value_size) * _dtype(g).itemsize
            for g in groups
        )

    def layers(self, group_name: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """``(k, v)`` of every layer: ``[num_blocks, block_size, kv_heads, key_size]`` and ``[..., value_size]``."""
        return self._layers[group_name]

    @property
    def shared_layers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """``layers`` of all groups that use the target's blocks."""
        return [layer for name in self._shared for layer in self._layers[name]]

    def _allocate(self, group: KVGroup) -> list[tuple[torch.Tensor, torch.Tensor]]:
        dtype = _dtype(group)
        head_shape = (self.num_blocks, self.block_size, group.num_kv_heads)
        try:
            # Zeros: attention multiplies masked slots by 0, which garbage could turn into NaN.
            return [
                (
                    torch.zeros(*head_shape, group.key_size, dtype=dtype, device=self.device),
                    torch.zeros(*head_shape, group.value_size, dtype=dtype, device=self.device),
                )
                for _ in range(group.num_layers)
            ]
        except RuntimeError as error:
            raise KVMemoryError(
                f'KV group "{group.name}" does not fit {self.device}: {self.num_blocks} blocks of all groups need '
                f"{self.num_blocks * self.bytes_per_block} bytes; use fewer blocks or a shorter max_model_len"
            ) from error
