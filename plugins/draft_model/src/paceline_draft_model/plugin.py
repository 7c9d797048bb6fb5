"""The entry point: options, declaration and hook. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from paceline.api import (
    PagedModel,
    PluginError,
    ProposerCapabilities,
    ProposerContext,
    ProposerSpec,
    TargetFacts,
    chain_lookahead,
    hookimpl,
)
from paceline_draft_model.kv_group import KV_GROUP, draft_kv_group
from paceline_draft_model.proposer import DraftModelProposer

__all__ = ["DraftModelOptions", "paceline_proposers"]


class DraftModelOptions(BaseModel):
    """Which model drafts, and how it chooses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        min_length=1,
        description='Folder, GGUF file or hub id of a causal LM with the target\'s tokenizer; "target": its weights.',
    )
    sampling: Literal["coupled", "greedy"] = Field(
        default="coupled", description="Draft with the verifier's own rule and noise, or the likeliest token."
    )


def _describe(options: DraftModelOptions, target: TargetFacts) -> ProposerCapabilities:
    return ProposerCapabilities(
        max_tokens=target.max_model_len - 1,
        lookahead_slots=chain_lookahead,
        kv_groups=(draft_kv_group(options.model, target),),
    )


def _build(options: DraftModelOptions, context: ProposerContext) -> DraftModelProposer:
    model = context.load_model(options.model, KV_GROUP)
    _check_vocabulary(options.model, model, context.target)
    return DraftModelProposer(model, context.target.vocab_size, options.sampling == "coupled")


def _check_vocabulary(name: str, model: PagedModel, target: TargetFacts) -> None:
    padded_size = target.config.get("vocab_size", target.vocab_size)
    if model.vocab_size not in (target.vocab_size, padded_size):
        raise PluginError(
            f'draft model "{name}" has a vocabulary of {model.vocab_size} ids, the target one of {target.vocab_size}; '
            "choose a draft model with the target's own tokenizer"
        )
    if model.tokenizer_fingerprint and target.tokenizer_fingerprint not in ("", model.tokenizer_fingerprint):
        raise PluginError(
            f'draft model "{name}" has a vocabulary of {model.vocab_size} ids, as many as the target, but another '
            f"tokenizer (digest {model.tokenizer_fingerprint[:12]}, the target's {target.tokenizer_fingerprint[:12]}), "
            "so its ids mean other text; choose a draft model with the target's own tokenizer"
        )


@hookimpl
def paceline_proposers() -> tuple[ProposerSpec, ...]:
    """Declare the proposer ``draft_model``."""
    return (
        ProposerSpec(
            name="draft_model",
            summary="A chain drafted by a smaller model with the target's tokenizer",
            options=DraftModelOptions,
            requires_api=">=0.1,<0.2",
            describe=_describe,
            build=_build,
        ),
    )
