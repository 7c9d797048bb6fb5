"""First in, first out, and what it becomes by one fault each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.api import BlockFacts, EvictionCapabilities, EvictionPolicy, TargetFacts


class FirstIn(EvictionPolicy):
    """No fault: who was offered first goes first."""

    def __init__(self, context: Any) -> None:
        self.blocks: dict[int, BlockFacts] = {}

    @classmethod
    def capabilities(cls, target: TargetFacts) -> EvictionCapabilities:
        return EvictionCapabilities()

    def evictable(self, blocks: Sequence[BlockFacts]) -> None:
        self.blocks.update((block.block_id, block) for block in blocks)

    def not_evictable(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            del self.blocks[block_id]

    def removed(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            del self.blocks[block_id]

    def victims(self, count: int) -> Sequence[int]:
        return list(self.blocks)[:count]


class ForgetsReuse(FirstIn):
    """does not heed that a block is in use again"""

    def not_evictable(self, block_ids: Sequence[int]) -> None:
        pass


class OneTooMany(FirstIn):
    """chooses a block more than was asked for"""

    def victims(self, count: int) -> Sequence[int]:
        return list(self.blocks)[: count + 1]


class Twice(FirstIn):
    """names the first victim twice"""

    def victims(self, count: int) -> Sequence[int]:
        first = list(self.blocks)[: max(count - 1, 1)]
        return first[:1] + first if count > 1 else first


class GivesUp(FirstIn):
    """keeps the last two blocks for ever"""

    def victims(self, count: int) -> Sequence[int]:
        return list(self.blocks)[:-2][:count]


class EvictsItself(FirstIn):
    """forgets what it chose, before the core has evicted it"""

    def victims(self, count: int) -> Sequence[int]:
        return [self.blocks.popitem()[0] for _ in range(min(count, len(self.blocks)))]

    def removed(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            self.blocks.pop(block_id, None)


class CannotRunOut(FirstIn):
    """fails where more is asked for than there is"""

    def victims(self, count: int) -> Sequence[int]:
        blocks = list(self.blocks)
        return [blocks[index] for index in range(count)]


class Leaks(FirstIn):
    """keeps the keys of all blocks that were evicted"""

    def removed(self, block_ids: Sequence[int]) -> None:
        keys = {self.blocks[block_id].key for block_id in block_ids}
        self.keys: set[bytes] = getattr(self, "keys", set()) | keys
        super().removed(block_ids)


class AnyOrder(FirstIn):
    """chooses by where blocks lie in memory"""

    def victims(self, count: int) -> Sequence[int]:
        return sorted(self.blocks, key=lambda block_id: hash((id(self), block_id)))[:count]


HONEST = FirstIn
CAUGHT_BY = {
    ForgetsReuse: "test_victims_are_evictable",
    OneTooMany: "test_victims_are_evictable",
    Twice: "test_victims_are_evictable",
    GivesUp: "test_everything_can_go",
    EvictsItself: "test_asking_changes_nothing",
    CannotRunOut: "test_more_than_there_is",
    Leaks: "test_memory_does_not_grow",
    AnyOrder: "test_choices_repeat",
}
