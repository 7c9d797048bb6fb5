"""The index against a scan over the whole sequence, and its cost in dictionary probes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from paceline_ngram.index import NgramIndex


def scan(tokens: Sequence[int], max_match: int) -> tuple[int, int]:
    """Longest suffix of up to ``max_match`` tokens that occurs earlier, and where its last earlier occurrence ends."""
    size = len(tokens)
    for length in range(min(max_match, size - 1), 0, -1):
        for end in range(size - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[size - length :]:
                return length, end
    return 0, 0


def common_suffix(tokens: Sequence[int], end: int) -> int:
    length = 0
    while length < end and tokens[end - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


def copied_forward(tokens: Sequence[int], end: int, num_tokens: int) -> list[int]:
    text = list(tokens)
    for offset in range(num_tokens):
        text.append(text[end + offset])
    return text[len(tokens) :]


class CountingDict(dict[int, int]):
    """A dictionary that counts reads and writes."""

    num_operations = 0

    def get(self, key: int, default: int | None = None) -> int | None:
        self.num_operations += 1
        return super().get(key, default)

    def __setitem__(self, key: int, value: int) -> None:
        self.num_operations += 1
        super().__setitem__(key, value)


def num_operations(tokens: Sequence[int], max_match: int) -> int:
    index = NgramIndex(max_match)
    index._children = CountingDict()
    index.extend(tokens)
    return index._children.num_operations


@pytest.mark.parametrize("alphabet", [1, 2, 3, 5])
@pytest.mark.parametrize("max_match", [1, 2, 4, 9])
def test_every_prefix_agrees_with_a_scan(alphabet: int, max_match: int) -> None:
    rng = np.random.default_rng([alphabet, max_match])
    for _ in range(20):
        tokens = rng.integers(alphabet, size=60).tolist()
        index = NgramIndex(max_match)
        for size, token in enumerate(tokens, start=1):
            index.extend([token])
            expected = scan(tokens[:size], max_match)
            assert (index.match_length, index.match_end) == expected, (tokens[:size], max_match)


def test_pieces_of_any_size_give_the_same_index() -> None:
    rng = np.random.default_rng(7)
    tokens = rng.integers(3, size=200).tolist()
    whole, pieces = NgramIndex(5), NgramIndex(5)
    whole.extend(tokens)
    for start, stop in zip([0, 1, 90, 91], [1, 90, 91, 200], strict=True):
        pieces.extend(tokens[start:stop])
    assert pieces.tokens == tokens
    assert (pieces.match_length, pieces.match_end) == (whole.match_length, whole.match_end)
    assert pieces._children == whole._children


@pytest.mark.parametrize("alphabet", [1, 2, 3])
def test_continuation_and_common_length_agree_with_plain_loops(alphabet: int) -> None:
    rng = np.random.default_rng(alphabet)
    for size in range(2, 80):
        tokens = rng.integers(alphabet, size=size).tolist()
        index = NgramIndex(3)
        index.extend(tokens)
        if index.match_length == 0:
            continue
        assert index.continuation(12) == copied_forward(tokens, index.match_end, 12)
        for limit in range(12):
            assert index.common_length(limit) == min(limit, common_suffix(tokens, index.match_end))


def test_an_empty_index_has_no_match() -> None:
    index = NgramIndex(4)
    index.extend([])
    assert (index.match_length, index.common_length(5)) == (0, 0)


def texts(size: int) -> dict[str, list[int]]:
    rng = np.random.default_rng(size)
    return {
        "one token": [7] * size,
        "short period": [1, 2, 3] * (size // 3),
        "two letters": rng.integers(2, size=size).tolist(),
        "all different": list(range(size)),
        "a long text twice": [*range(size // 2), *range(size // 2)],
        "period longer than the match": [*range(50)] * (size // 50),
    }


@pytest.mark.parametrize("name", list(texts(100)))
def test_cost_of_a_token_does_not_grow_with_the_text(name: str) -> None:
    max_match = 8
    costs = {size: num_operations(texts(size)[name], max_match) / size for size in (1_000, 10_000)}
    assert max(costs.values()) <= 2 * max_match + 1
    assert costs[10_000] <= 1.1 * costs[1_000] + 0.1


def test_text_that_never_repeats_costs_one_probe_and_one_entry_a_token() -> None:
    assert num_operations(range(5_000), max_match=64) == 2 * 5_000


def test_lookup_and_continuation_cost_nothing_in_the_index() -> None:
    index = NgramIndex(4)
    index._children = CountingDict()
    index.extend([1, 2] * 500)
    before = index._children.num_operations
    for _ in range(100):
        index.continuation(index.common_length(8))
    assert index._children.num_operations == before
