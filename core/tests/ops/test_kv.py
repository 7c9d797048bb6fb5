from __future__ import annotations

import numpy as np
import torch

from paceline.ops.batch import AttentionBatch
from paceline.ops.kv import copy_blocks, move_kv, write_batch_kv, write_kv


def caches(layers=1):
    def one(size):
        return torch.arange(5 * 4 * 2 * size, dtype=torch.float32).view(5, 4, 2, size)

    return [(one(3), one(6) + 1000) for _ in range(layers)]


def entry(cache, slot):
    return cache[slot // 4, slot % 4]


def test_write_skips_negative_slots():
    (k, v), (old_k, old_v) = caches()[0], caches()[0]
    rows_k, rows_v = -torch.ones(3, 2, 3), -torch.ones(3, 2, 6)
    write_kv(k, v, rows_k, rows_v, torch.tensor([7, -1, 18]))
    assert (entry(k, 7) == -1).all() and (entry(v, 18) == -1).all()
    changed = (k != old_k).flatten(2).any(2).flatten()
    assert changed.nonzero().flatten().tolist() == [7, 18]
    assert (v != old_v).flatten(2).any(2).flatten().nonzero().flatten().tolist() == [7, 18]


def test_batch_write_equals_write():
    for slots in ([3, 9, 11], [3, -1, 11], [-1, -1, -1]):
        batch = AttentionBatch.build(
            query_starts=np.array([0, 3]),
            visible=np.array([1, 2, 3]),
            slots=np.array(slots),
            block_tables=np.array([[0, 1]]),
            block_size=4,
        )
        (k, v), (other_k, other_v) = caches()[0], caches()[0]
        rows = torch.randn(3, 2, 3), torch.randn(3, 2, 6)
        write_batch_kv(k, v, *rows, batch)
        write_kv(other_k, other_v, *rows, torch.tensor(slots))
        assert torch.equal(k, other_k) and torch.equal(v, other_v)


def test_move_reads_everything_before_it_writes():
    moved, old = caches(2), caches(2)
    move_kv(moved, torch.tensor([5, 6, 4]), torch.tensor([4, 5, 19]))
    for (k, v), (old_k, old_v) in zip(moved, old, strict=True):
        for src, dst in ((5, 4), (6, 5), (4, 19)):
            assert torch.equal(entry(k, dst), entry(old_k, src)) and torch.equal(entry(v, dst), entry(old_v, src))
        assert torch.equal(entry(k, 6), entry(old_k, 6))


def test_copy_blocks_reads_everything_before_it_writes():
    copied, old = caches(2), caches(2)
    copy_blocks(copied, torch.tensor([1, 2]), torch.tensor([2, 4]))
    for (k, v), (old_k, old_v) in zip(copied, old, strict=True):
        assert torch.equal(k, old_k[[0, 1, 1, 3, 2]]) and torch.equal(v, old_v[[0, 1, 1, 3, 2]])
