"""Training-time test against the slow way: one chain at a time, with a plain list of entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from paceline_eagle.training.acceptance import replay
from paceline_eagle.training.batches import collate, epoch_order
from paceline_eagle.training.unroll import unrolled


class PlainCache:
    """Entries of one chain, in order."""

    def __init__(self) -> None:
        self.keys = torch.zeros(0, 2, 8)
        self.values = torch.zeros(0, 2, 8)

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        self.keys, self.values = torch.cat([self.keys, key]), torch.cat([self.values, value])
        start = len(self.keys) - len(key)
        out = torch.zeros_like(query)
        for row in range(len(query)):
            for head in range(query.shape[1]):
                seen = self.keys[: start + row + 1, head // 2], self.values[: start + row + 1, head // 2]
                weights = (seen[0] @ query[row, head] / 8**0.5).softmax(0)
                out[row, head] = weights @ seen[1]
        return out


def drafted_slowly(head: Any, embed: Any, sample: Any, base: int, num_steps: int) -> list[Any]:
    """States of the drafts behind the committed slot ``base``: true features up to it, then the head's own."""
    tokens = torch.from_numpy(sample.tokens).long()
    features = [sample.features[layer][:base].float() for layer in head.config.aux_layers]
    cache = PlainCache()
    states = head(embed(tokens[1 : base + 1]), head.fuse(features), torch.arange(base), cache.attend)[-1:]
    out = [states[0]]
    for step in range(1, num_steps):
        at = base + step
        states = head(embed(tokens[at : at + 1]), states, torch.tensor([at - 1]), cache.attend)
        out.append(states[0])
    return out


def test_equals_one_chain_at_a_time(make_trainer: Callable[..., Any], dataset: Any) -> None:
    trainer = make_trainer()
    head, embed = trainer._head, trainer._teacher.embed
    torch.manual_seed(0)
    for parameter in head.parameters():  # the initial head reads neither embeddings nor low features
        parameter.data += 0.1 * torch.randn_like(parameter)
    samples = dataset.training[:3]
    batch = collate(samples, head.config.aux_layers, "cpu")
    with torch.no_grad():
        steps = list(unrolled(head, batch, embed(batch.tokens), 4))
        num_compared = 0
        for step, (rows, states) in enumerate(steps):
            for row, state in zip(rows.tolist(), states, strict=True):
                sample, slot = samples[int(batch.sequence[row])], int(batch.offset[row]) + 1
                assert slot - step >= sample.num_prompt_tokens and slot + 1 < len(sample.tokens)
                expected = drafted_slowly(head, embed, sample, slot - step, step + 1)[step]
                torch.testing.assert_close(state, expected, rtol=1e-4, atol=1e-4)
                num_compared += 1
    per_sample = [len(sample.tokens) - 1 - sample.num_prompt_tokens for sample in samples]
    assert num_compared == sum(max(count - step, 0) for count in per_sample for step in range(4))


def test_rows_are_token_and_feature_before(dataset: Any) -> None:
    samples = dataset.training[:2]
    batch = collate(samples, (1,), "cpu")
    row = 0
    for number, sample in enumerate(samples):
        for slot in range(1, len(sample.tokens)):
            is_last = slot + 1 == len(sample.tokens)
            assert int(batch.sequence[row]) == number
            assert int(batch.tokens[row]) == sample.tokens[slot]
            assert int(batch.next_tokens[row]) == (-1 if is_last else sample.tokens[slot + 1])
            assert torch.equal(batch.features[1][row], sample.features[1][slot - 1].float())
            assert torch.equal(batch.final[row], sample.features["final"][slot].float())
            row += 1
    assert row == len(batch.tokens)


def test_an_epoch_has_every_sample_once() -> None:
    sizes = [5, 9, 2, 7, 3, 8]
    order = epoch_order(sizes, 10, 3, 0)
    assert sorted(sample for batch in order for sample in batch) == list(range(6))
    assert all(sum(sizes[sample] for sample in batch) >= 10 for batch in order[:-1])
    assert order == epoch_order(sizes, 10, 3, 0)
    assert order != epoch_order(sizes, 10, 3, 1) and order != epoch_order(sizes, 10, 4, 0)


def test_replays_as_the_engine_steps() -> None:
    right = np.array([[1, 0, 1, 1, 1, 0, 1], [0, 1, 0, 1, 1, 1, 0], [0, 0, 1, 0, 0, 1, 1]], dtype=bool)
    # Step 1 at row 0: draft 0 right, draft 1 (row 1) right, draft 2 (row 2) right: 3. Step 2 at row 4: draft 0 right,
    # draft 1 (row 5) right, draft 2 (row 6) right: 3. Nothing is left.
    found = replay(right)
    assert (found.num_steps, found.num_accepted, found.first_right, found.length) == (2, 6, 2, 4.0)
    found = replay(right[:1])  # chains of 1: rows 0, 2, 4, 6
    assert (found.num_steps, found.num_accepted, found.length) == (4, 4, 2.0)
    found = replay(~right)  # rows 0 wrong, 1 (draft 1 wrong in row 2? it is right: ~0), ...
    assert (found + replay(right)).num_steps == found.num_steps + 2
    nothing = replay(np.zeros((3, 4), dtype=bool))
    assert (nothing.num_steps, nothing.num_accepted, nothing.length) == (4, 0, 1.0)
