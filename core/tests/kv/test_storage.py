from __future__ import annotations

import pytest
import torch

from paceline.kv.errors import KVGroupError, KVMemoryError
from paceline.kv.storage import KVStorage


def test_layers_have_the_shapes_and_bytes_of_their_groups(group):
    groups = [group("target", num_layers=3, num_kv_heads=2), group("draft", dtype="bfloat16")]
    storage = KVStorage(groups, num_blocks=5, block_size=4, device="cpu")
    layers = storage.layers("target")
    assert [tuple(t.shape) for t in layers[0]] == [(5, 4, 2, 8), (5, 4, 2, 4)]
    assert (len(layers), len(storage.layers("draft"))) == (3, 2)
    assert storage.layers("draft")[0][0].dtype is torch.bfloat16
    allocated = sum(t.nbytes for g in groups for layer in storage.layers(g.name) for t in layer)
    assert allocated == 5 * storage.bytes_per_block == 5 * KVStorage.block_bytes(groups, 4)
    assert not any(t.any() for layer in layers for t in layer)


def test_two_groups_of_one_name_are_refused(group):
    with pytest.raises(KVGroupError, match='E404: 2 KV groups are named "draft"; give each its own name'):
        KVStorage([group(), group()], 1, 4, "cpu")


@pytest.mark.parametrize("dtype", ["float23", "nn", "int64"])
def test_an_unknown_dtype_is_refused(group, dtype):
    with pytest.raises(KVGroupError, match=f'KV group "draft" has dtype "{dtype}", which KV cannot have'):
        KVStorage.block_bytes([group(dtype=dtype)], 4)


def test_too_many_blocks_are_an_error_with_the_bytes(group):
    with pytest.raises(KVMemoryError, match=r'E405: KV group "draft" does not fit cpu: 1\d+ blocks .* need \d+ bytes'):
        KVStorage([group()], 10**14, 4, "cpu")
