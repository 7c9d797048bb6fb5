"""How many KV blocks to allocate."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from paceline.model.errors import NotEnoughMemoryError

__all__ = ["free_bytes", "num_kv_blocks"]

_GIB = 1024**3


def num_kv_blocks(
    *,
    bytes_per_block: int,
    block_size: int,
    slots_per_seq: int,
    max_num_seqs: int,
    device: torch.device,
    gpu_memory_utilization: float,
    num_blocks_override: int | None = None,
    kv_cache_memory_bytes: int | None = None,
) -> int:
    """The number of KV blocks: as given, or as fits into the bytes given, or as fits into what is free.

    Args:
        bytes_per_block: Bytes of one block over all layers of all groups.
        block_size: Tokens per block.
        slots_per_seq: Most slots that one sequence may need: its longest length and the slots of its drafts.
        max_num_seqs: Most sequences in one step.
        device: Where the blocks live. On the CPU never more is taken than all sequences need at their longest.
        gpu_memory_utilization: Share of the device's memory (on the CPU: of what is free) that may be in use, the
            weights included; the rest is for activations.
        num_blocks_override: Take this number.
        kv_cache_memory_bytes: Take as many as fit into it.

    Raises:
        NotEnoughMemoryError: if a computed number does not hold one sequence at its longest, or a given one is < 1.
    """
    if num_blocks_override is not None:
        return _checked_override(num_blocks_override)
    blocks_per_seq = -(-slots_per_seq // block_size)
    budget_bytes = kv_cache_memory_bytes
    if budget_bytes is None:
        budget_bytes = free_bytes(device, gpu_memory_utilization)
    num_blocks = max(budget_bytes, 0) // bytes_per_block
    if num_blocks < blocks_per_seq:
        raise NotEnoughMemoryError(
            f"one sequence of {slots_per_seq} tokens needs {blocks_per_seq} KV blocks "
            f"({blocks_per_seq * bytes_per_block / _GIB:.2f} GiB), but {max(budget_bytes, 0) / _GIB:.2f} GiB hold "
            f"{num_blocks}; lower max_model_len, or raise gpu_memory_utilization or kv_cache_memory_bytes"
        )
    if device.type == "cpu" and kv_cache_memory_bytes is None:
        return min(num_blocks, max_num_seqs * blocks_per_seq)
    return num_blocks


def free_bytes(device: torch.device, utilization: float) -> int:
    """Bytes that may be taken on the device so that not more than ``utilization`` of it is in use."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(total * utilization) - (total - free)
    return int(_available_host_bytes() * utilization)


def _checked_override(num_blocks: int) -> int:
    if num_blocks < 1:
        raise NotEnoughMemoryError(f"num_gpu_blocks_override is {num_blocks}; it must be at least 1")
    return num_blocks


def _available_host_bytes() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
