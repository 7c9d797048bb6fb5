"""From options to a proposer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.api import ProposerContext
from paceline_eagle.chain import ChainDrafter
from paceline_eagle.checkpoint import load_head
from paceline_eagle.proposer import EagleProposer
from paceline_eagle.runner import HeadRunner
from paceline_eagle.tree import TreeDrafter
from paceline_eagle.tree_shape import tree_shape

if TYPE_CHECKING:
    from paceline_eagle.plugin import EagleOptions

__all__ = ["build_proposer"]


def build_proposer(options: EagleOptions, context: ProposerContext) -> EagleProposer:
    """Load the head and put a drafter on it.

    Raises:
        PluginError: if the head cannot be loaded or does not fit the target.
    """
    head = load_head(options.model, context.target)
    head.use_linears(context.linear)
    runner = HeadRunner(head, context)
    coupled = options.sampling == "coupled"
    if options.shape == "chain":
        return EagleProposer(runner, ChainDrafter(runner, coupled))
    shape = tree_shape(options.top_k, options.depth, head.config)
    return EagleProposer(runner, TreeDrafter(runner, shape, coupled))
