"""The number of KV blocks."""

from __future__ import annotations

import pytest
import torch

from paceline.model import memory
from paceline.model.errors import NotEnoughMemoryError
from paceline.model.memory import free_bytes, num_kv_blocks

MIB = 1024**2
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def blocks(**changes):
    given = {
        "bytes_per_block": MIB,
        "block_size": 16,
        "slots_per_seq": 100,
        "max_num_seqs": 4,
        "device": CPU,
        "gpu_memory_utilization": 0.5,
    }
    return num_kv_blocks(**(given | changes))


@pytest.fixture
def free_mib(monkeypatch):
    """Set what is free on the host and on the device, of 1000 MiB."""

    def use(mib):
        monkeypatch.setattr(memory, "_available_host_bytes", lambda: mib * MIB)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (mib * MIB, 1000 * MIB))

    return use


def test_the_cpu_takes_no_more_than_all_sequences_need(free_mib):
    free_mib(1000)
    assert blocks() == 4 * 7


def test_the_cpu_takes_no_more_than_its_share_of_what_is_free(free_mib):
    free_mib(40)
    assert blocks() == 20


def test_a_device_is_filled_to_its_share(free_mib):
    free_mib(800)
    assert free_bytes(CUDA, 0.5) == 300 * MIB
    assert blocks(device=CUDA) == 300


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_bytes_given(device):
    assert blocks(kv_cache_memory_bytes=50 * MIB + 5, device=device) == 50


def test_blocks_given():
    assert blocks(num_blocks_override=3, kv_cache_memory_bytes=50 * MIB) == 3


def test_no_blocks_given():
    with pytest.raises(NotEnoughMemoryError, match="E308: num_gpu_blocks_override is 0; it must be at least 1"):
        blocks(num_blocks_override=0)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_less_than_one_sequence(device, free_mib):
    free_mib(10)
    with pytest.raises(
        NotEnoughMemoryError, match=r"one sequence of 100 tokens needs 7 KV blocks.*lower max_model_len"
    ):
        blocks(device=device)


def test_this_host_has_memory():
    assert 2**24 < free_bytes(CPU, 1.0) < 2**50
