"""Bad words: their token sequences, and what would complete one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.engine.bad_words import BadWords, bad_word_ids


def by_byte(text: str) -> list[int]:
    return list(text.encode())


WORDS = {" no": 1, "no": 2, " way": 3, "way": 4, " ": 5}


def by_word(text: str) -> list[int]:
    """Longest words first, as a byte-pair tokenizer has them: with the space in front or without."""
    ids = []
    while text:
        word = max((word for word in WORDS if text.startswith(word)), key=len)
        ids.append(WORDS[word])
        text = text[len(word) :]
    return ids


def test_a_word_is_banned_at_the_start_and_after_a_space() -> None:
    assert bad_word_ids(["no"], by_word) == [[1], [2]]
    assert bad_word_ids([" no"], by_word) == [[1], [2]]
    assert bad_word_ids(["no way"], by_word) == [[1, 3], [2, 3]]
    assert bad_word_ids(["no way", "way"], by_word) == [[3], [4]]


def test_forms_that_end_with_another_are_left_out() -> None:
    """With a space of its own, what follows it is the form without."""
    assert bad_word_ids(["ab"], by_byte) == [[97, 98]]
    assert bad_word_ids(["ab", "b"], by_byte) == [[98]]
    assert bad_word_ids(["x"], lambda text: []) == []


SEQUENCES = [[3], [1, 2], [2, 2], [0, 1, 2], [2, 0, 1, 0]]


def completions(history: list[int]) -> list[int]:
    """The rule written out."""
    ends = (words for words in SEQUENCES if len(words) <= len(history) + 1)
    return sorted({words[-1] for words in ends if words[:-1] == history[len(history) - len(words) + 1 :]})


@pytest.mark.parametrize("num_output", [0, 1, 2, 3, 9])
def test_completions_of_every_row_equal_the_loop(num_output: int) -> None:
    random = np.random.default_rng(num_output)
    words = BadWords(SEQUENCES)
    for _ in range(60):
        output = random.integers(0, 4, num_output)
        drafted = random.integers(0, 4, (5, 4))
        lengths = np.arange(5)
        drafted[np.arange(4) >= lengths[:, None]] = -1
        found = words.completions(output, drafted, lengths)
        expected = [completions([*output.tolist(), *row[:n].tolist()]) for row, n in zip(drafted, lengths, strict=True)]
        assert [ids.tolist() for ids in found] == expected


def test_completions_are_those_of_transformers() -> None:
    from transformers import NoBadWordsLogitsProcessor

    theirs = NoBadWordsLogitsProcessor(SEQUENCES, eos_token_id=None)
    words, none = BadWords(SEQUENCES), np.empty((1, 0), dtype=np.int64)
    for output in np.random.default_rng(1).integers(0, 4, (40, 7)):
        scores = theirs(torch.from_numpy(output)[None], torch.zeros(1, 4))
        [found] = words.completions(output, none, np.zeros(1, dtype=np.int64))
        assert found.tolist() == scores[0].isinf().nonzero().flatten().tolist()


def test_one_word_alone_needs_no_history() -> None:
    [found] = BadWords([[7]]).completions(np.array([1, 2]), np.array([[5]]), np.array([1]))
    assert found.tolist() == [7]
