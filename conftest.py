"""Settings of every test run. They must be in the environment before anything imports torch or transformers."""

from __future__ import annotations

import os

import pytest

TEST_ENVIRONMENT = {
    "PACELINE_CHECK": "1",  # the core's thorough checks
    "OMP_NUM_THREADS": "1",  # tiny models are slower on more threads
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",  # no test downloads anything
}
for _name, _value in TEST_ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
