from __future__ import annotations

import itertools
import math

import pytest
import torch


@pytest.fixture
def chi_square_limit():
    """Quantile of chi-square six standard deviations out (Wilson-Hilferty): a false alarm in 1e9."""

    def limit(df: int) -> float:
        return df * (1 - 2 / (9 * df) + 6 * math.sqrt(2 / (9 * df))) ** 3

    return limit


class Law:
    """A random target over ``vocab`` tokens: float64 probabilities after each prefix of up to ``length - 1`` tokens."""

    def __init__(self, vocab: int, length: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab, self.length = vocab, length
        self.after = {
            prefix: (torch.randn(vocab, generator=generator, dtype=torch.float64) * 1.5).softmax(0).tolist()
            for size in range(length)
            for prefix in itertools.product(range(vocab), repeat=size)
        }

    def completed(self, emitted: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
        """The law of ``length`` tokens when each emitted run goes on as the target would."""
        out: dict[tuple[int, ...], float] = {}
        for run, share in emitted.items():
            for rest in itertools.product(range(self.vocab), repeat=self.length - len(run)):
                sequence = run + rest
                weight = share * math.prod(self.after[sequence[:i]][sequence[i]] for i in range(len(run), self.length))
                out[sequence] = out.get(sequence, 0.0) + weight
        return out

    def distance(self, emitted: dict[tuple[int, ...], float]) -> float:
        """Total variation from the target's own law of ``length`` tokens."""
        mine, exact = self.completed(emitted), self.completed({(): 1.0})
        return sum(abs(mine.get(sequence, 0.0) - share) for sequence, share in exact.items()) / 2


@pytest.fixture
def make_law():
    return Law
