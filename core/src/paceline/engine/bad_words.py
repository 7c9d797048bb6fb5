"""Bad words: from texts to token sequences, and which tokens would complete one at a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["BadWords", "bad_word_ids"]

_ANY = -2


def bad_word_ids(words: Sequence[str], encode: Callable[[str], list[int]]) -> list[list[int]]:
    """Token sequences of the words, each as it stands at the start of a text and after a space.

    A sequence that ends with another one is left out, since whatever completes it completes the other.

    Args:
        words: Texts that are more than white space.
        encode: Text to tokens, without special tokens.
    """
    forms = {tuple(encode(prefix + word.lstrip())) for word in words for prefix in ("", " ")}
    endings = {form for form in forms if form}
    return sorted(list(form) for form in endings if not any(form[i:] in endings for i in range(1, len(form))))


class BadWords:
    """The token sequences of one request, as arrays that all rows are held against at once."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        """Take at least one sequence; none is empty."""
        self.reach = max(map(len, sequences)) - 1
        self._last = np.array([sequence[-1] for sequence in sequences], dtype=np.int64)
        self._before = np.full((len(sequences), self.reach), _ANY, dtype=np.int64)
        for row, sequence in zip(self._before, sequences, strict=True):
            row[self.reach - len(sequence) + 1 :] = sequence[:-1]

    def completions(self, output: np.ndarray, drafted: np.ndarray, num_drafted: np.ndarray) -> list[np.ndarray]:
        """Tokens that would complete a sequence, for rows of the same request.

        Args:
            output: int64 ``[num_output_tokens]``; the prompt is no part of it.
            drafted: int64 ``[rows, width]``, tokens drafted before each row, padded with -1.
            num_drafted: int64 ``[rows]``, how many of them, at most ``width``.

        Returns:
            For each row int64 ids, without duplicates.
        """
        tail = np.full((len(drafted), self.reach), -1, dtype=np.int64)
        known = output[max(len(output) - self.reach, 0) :]
        tail[:, self.reach - len(known) :] = known
        history = np.concatenate([tail, drafted], axis=1)
        latest = np.take_along_axis(history, num_drafted[:, None] + np.arange(self.reach), axis=1)
        completes = ((self._before == _ANY) | (self._before == latest[:, None])).all(axis=2)
        return [np.unique(self._last[row]) for row in completes]
