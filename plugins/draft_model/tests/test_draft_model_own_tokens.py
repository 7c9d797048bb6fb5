"""KV of a model's own tokens: whatever is wanted next, the logits are those of all of it, and no more is computed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paceline_draft_model.own_tokens import OwnTokens, prompt_parts

NO_TOKENS = np.zeros(0, dtype=np.int64)


class View:
    """Private slots of some requests, from a pool of so many."""

    def __init__(self, num_requests: int, num_slots: int = 10_000) -> None:
        self._computed = np.zeros(num_requests, dtype=np.int64)
        self.capacity = np.zeros(num_requests, dtype=np.int64)
        self.entries = [np.full(400, -7) for _ in range(num_requests)]
        self.num_slots = num_slots

    def reserve(self, num_slots: np.ndarray) -> None:
        for index, wanted in enumerate(num_slots.tolist()):
            missing = wanted - int(self.capacity[index])
            if 0 < missing <= self.num_slots - int(self.capacity.sum()):
                self.capacity[index] += missing

    @property
    def computed(self) -> np.ndarray:
        return self._computed.copy()

    def report(self, computed: np.ndarray) -> None:
        assert (computed <= self.capacity).all()
        self._computed = computed.copy()

    def preempt(self, index: int) -> None:
        self._computed[index] = self.capacity[index] = 0
        self.entries[index][:] = -7


class Model:
    """Its logits are the tokens that it can see."""

    vocab_size = 400

    def __init__(self, max_positions: int = 300) -> None:
        self.max_positions = max_positions
        self.num_computed = 0

    def forward(self, view: View, tokens: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        assert len(tokens) == counts.sum()
        assert (starts[counts > 0] <= view.computed[counts > 0]).all(), "a gap"
        rows, offset = [], 0
        for index, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
            if count:
                assert start == view.computed[index], "entries that are there are not written again"
                view.entries[index][start : start + count] = tokens[offset : offset + count]
                row = np.full(400, -1)
                row[: start + count] = view.entries[index][: start + count]
                rows.append(torch.from_numpy(row))
            offset += count
        self.num_computed += len(tokens)
        return torch.stack(rows)


def requests(count: int) -> list[Any]:
    return [SimpleNamespace(request_id=f"r{index}") for index in range(count)]


def seen(logits: Any, row: int, size: int) -> list[int]:
    assert (logits[row, size:] == -1).all()
    return logits[row, :size].tolist()


@pytest.mark.parametrize("seed", range(4))
def test_logits_are_those_of_what_is_wanted(seed: int) -> None:
    random = np.random.default_rng(seed)
    model, view = Model(), View(4)
    subject, wanted = OwnTokens(model), [random.integers(0, 5, 6) for _ in range(4)]
    for _ in range(200):
        for index in np.flatnonzero(random.random(4) < 0.7).tolist():
            kept = int(random.integers(1, len(wanted[index]) + 1)) if len(wanted[index]) < 90 else 3
            wanted[index] = np.concatenate([wanted[index][:kept], random.integers(0, 5, random.integers(0, 6))])
        if random.random() < 0.1:
            view.preempt(int(random.integers(4)))
        asked = [tokens if random.random() < 0.8 else None for tokens in wanted]
        rows, logits = subject.feed(view, requests(4), asked)
        assert rows.tolist() == [index for index, tokens in enumerate(asked) if tokens is not None]
        assert (logits is None) == (len(rows) == 0)
        assert [seen(logits, at, len(wanted[row])) for at, row in enumerate(rows)] == [
            wanted[row].tolist() for row in rows
        ]


def test_only_what_changed_is_computed() -> None:
    model, view = Model(), View(1)
    subject = OwnTokens(model)
    for tokens, num_new in (([1, 2, 3], 3), ([1, 2, 3, 4], 1), ([1, 2, 9, 4, 5], 3), ([1, 2, 9], 1), ([1, 2, 9, 4], 1)):
        before = model.num_computed
        subject.feed(view, requests(1), [np.array(tokens)])
        assert model.num_computed - before == num_new


def test_the_same_name_later_starts_anew() -> None:
    model, view = Model(), View(1)
    subject = OwnTokens(model)
    subject.feed(view, requests(1), [np.array([1, 2, 3])])
    subject.release(["r0", "unknown"])
    subject.feed(view, requests(1), [np.array([1, 2, 3])])
    assert model.num_computed == 6


def test_without_slots_or_positions_a_request_is_left_out() -> None:
    model, view = Model(max_positions=5), View(3, num_slots=8)
    wanted = [np.arange(6), np.arange(5), np.arange(4)]
    rows, logits = OwnTokens(model).feed(view, requests(3), wanted)
    assert rows.tolist() == [1] and len(logits) == 1
    assert view.computed.tolist() == [0, 5, 0], "the first is too long, and the second leaves too little"
    assert view.capacity.tolist() == [0, 5, 0]


def test_prompts_are_followed_no_faster_than_the_target() -> None:
    known = [SimpleNamespace(request_id=name, num_prompt_tokens=4, tokens=np.arange(9)) for name in "abcd"]
    committed = SimpleNamespace(
        requests=known,
        computed=np.array([[0, 3], [3, 4], [5, 6], [4, 7]]),
        recomputation=np.array([False, False, False, True]),
    )
    parts = prompt_parts(committed, lambda request: request.tokens * 2)
    assert [None if part is None else part.tolist() for part in parts] == [
        [0, 2, 4],
        [0, 2, 4, 6],
        None,
        [0, 2, 4, 6, 8, 10, 12],
    ]
    assert prompt_parts(committed, lambda request: NO_TOKENS) == [None] * 4
