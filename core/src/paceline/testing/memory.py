"""How much a plugin's object holds, counted by following references; exact, so that a leak of one entry shows."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

import torch

__all__ = ["check_memory"]

_OTHERS = ("paceline.", "tokenizers.", "torch.", "transformers.")  # what the plugin uses and does not own
BYTES_PER_REQUEST = 16  # an entry of a dict or a set takes more


def check_memory(own: object, work: Callable[[], object], *, rounds: int, requests_per_round: int) -> None:
    """Do the same work again and again; what ``own`` and its modules hold may not grow.

    Args:
        own: The plugin's object.
        work: One round, which ends everything it begins.
        rounds: Rounds that are measured, after as many that are not.
        requests_per_round: Requests that begin and end in a round.

    Raises:
        AssertionError: saying what grew.
    """
    sizes = []
    for _ in range(2):
        for _ in range(rounds):
            work()
        sizes.append(_held_bytes(own))
    growth, count = sizes[1] - sizes[0], rounds * requests_per_round
    assert growth <= count * BYTES_PER_REQUEST, (
        f"{type(own).__name__} held {sizes[0]} bytes, and {sizes[1]} after {count} more requests had ended; drop what "
        "is kept for a request when it ends"
    )


def _held_bytes(own: object) -> int:
    gc.collect()
    top = type(own).__module__.partition(".")[0]
    modules = [
        vars(module) for name, module in list(sys.modules.items()) if name.partition(".")[0] == top != "paceline"
    ]
    return sum(map(_size, _reachable([own, *modules])))


def _reachable(roots: list[Any]) -> Iterator[object]:
    seen = set(map(id, roots))
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        yield each
        for other in gc.get_referents(each):
            if id(other) not in seen and not _is_foreign(other):
                seen.add(id(other))
                waiting.append(other)


def _is_foreign(each: object) -> bool:
    own = type(each)  # not isinstance, which asks proxies for a class and so wakes them
    if issubclass(own, type | ModuleType | FrameType):
        return True
    home = f"{own.__module__}."
    return home.startswith(_OTHERS) and not home.startswith("paceline.api.") and not issubclass(own, torch.Tensor)


def _size(each: object) -> int:
    return torch.Tensor.nbytes.__get__(each) if issubclass(type(each), torch.Tensor) else sys.getsizeof(each)
