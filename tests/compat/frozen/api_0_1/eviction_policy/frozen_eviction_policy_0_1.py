"""Evicts what is cheap to make again and has not served a hit; keeps what a request asked to keep."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from paceline.api import (
    BlockFacts,
    EvictionCapabilities,
    EvictionContext,
    EvictionPolicy,
    EvictionPolicySpec,
    PluginError,
    TargetFacts,
    hookimpl,
)


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    hit_worth: float = 4.0


class Cheapest(EvictionPolicy):
    def __init__(self, options: Options, context: EvictionContext) -> None:
        if context.num_blocks < 2:
            raise PluginError(f"{context.num_blocks} blocks are too few; raise num_gpu_blocks_override to 2")
        self.options = options
        self.clock = context.clock
        self.blocks: dict[int, BlockFacts] = {}
        self.num_touched: dict[int, int] = {}

    def evictable(self, blocks: Sequence[BlockFacts]) -> None:
        self.blocks.update({block.block_id: block for block in blocks})

    def not_evictable(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            self.blocks.pop(block_id, None)

    def touched(self, blocks: Sequence[BlockFacts]) -> None:
        for block in blocks:
            self.num_touched[block.block_id] = self.num_touched.get(block.block_id, 0) + 1

    def removed(self, block_ids: Sequence[int]) -> None:
        self.not_evictable(block_ids)
        for block_id in block_ids:
            self.num_touched.pop(block_id, None)

    def victims(self, count: int) -> Sequence[int]:
        return sorted(self.blocks, key=lambda block_id: self.worth(self.blocks[block_id]))[:count]

    def worth(self, block: BlockFacts) -> tuple[float, ...]:
        now_s = self.clock()
        held = block.retention_expiry_s is None or block.retention_expiry_s > now_s
        hits = block.hits + self.num_touched.get(block.block_id, 0)
        age_s = now_s - block.last_use_s
        priority = block.retention_priority if held else 0
        value = block.recompute_cost * block.num_tokens + self.options.hit_worth * hits + len(block.tiers)
        return (priority, value / (1.0 + age_s), block.created_s, -block.depth, block.block_id)


def describe(options: Options, target: TargetFacts) -> EvictionCapabilities:
    return EvictionCapabilities()


@hookimpl
def paceline_eviction_policies() -> list[EvictionPolicySpec]:
    return [
        EvictionPolicySpec(
            name="frozen_eviction_policy_0_1",
            summary="The cheapest block goes first",
            options=Options,
            requires_api=">=0.1,<0.2",
            describe=describe,
            build=Cheapest,
        )
    ]
