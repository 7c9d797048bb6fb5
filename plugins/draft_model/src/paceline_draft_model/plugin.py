"""The entry point: declaration and hook. Imports neither torch nor transformers."""

from __future__ import annotations

from paceline.api import (
    PagedModel,
    PluginError,
    Proposer,
    ProposerCapabilities,
    ProposerContext,
    ProposerSpec,
    TargetFacts,
    chain_lookahead,
    hookimpl,
    no_lookahead,
)
from paceline_draft_model.choosing import Rule
from paceline_draft_model.intersect import IntersectProposer
from paceline_draft_model.intersection import Intersection
from paceline_draft_model.kv_group import KV_GROUP, draft_kv_group
from paceline_draft_model.options import DraftModelOptions
from paceline_draft_model.proposer import DraftModelProposer
from paceline_draft_model.retokenize import TextTokenizer
from paceline_draft_model.same_vocabulary import check_same_vocabulary
from paceline_draft_model.text import TextProposer
from paceline_draft_model.token_text import start_ids

__all__ = ["DraftModelOptions", "paceline_proposers"]


def _describe(options: DraftModelOptions, target: TargetFacts) -> ProposerCapabilities:
    is_same = options.vocabulary == "same"
    return ProposerCapabilities(
        max_tokens=target.max_model_len - 1,
        lookahead_slots=chain_lookahead if is_same else no_lookahead,
        kv_groups=(draft_kv_group(options.model, target, options.layers, private=not is_same),),
    )


def _build(options: DraftModelOptions, context: ProposerContext) -> Proposer:
    model = context.load_model(options.model, KV_GROUP, layers=options.layers)
    if options.vocabulary == "same":
        check_same_vocabulary(options.model, model, context.target, context.tokenizer)
        rule = Rule(options.sampling == "coupled", options.min_confidence)
        return DraftModelProposer(model, context.target.vocab_size, rule)
    _require_tokenizers(options, model, context)
    return _intersect(options, model, context) if options.vocabulary == "intersect" else _text(options, model, context)


def _require_tokenizers(options: DraftModelOptions, model: PagedModel, context: ProposerContext) -> None:
    for whose, tokenizer in (("the target", context.tokenizer), (f'draft model "{options.model}"', model.tokenizer)):
        if tokenizer is None:
            raise PluginError(
                f'vocabulary="{options.vocabulary}" compares tokenizers, and {whose} has none; '
                'put it beside the weights, or set vocabulary="same"'
            )


def _intersect(options: DraftModelOptions, model: PagedModel, context: ProposerContext) -> IntersectProposer:
    vocab_size = context.target.vocab_size
    shared = Intersection(options.model, context.tokenizer, model.tokenizer, vocab_size, model.vocab_size)
    rule = Rule(options.sampling == "coupled", options.min_confidence)
    return IntersectProposer(model, shared, start_ids(model.tokenizer), vocab_size, rule)


def _text(options: DraftModelOptions, model: PagedModel, context: ProposerContext) -> TextProposer:
    ends = model.tokenizer.eos_token_id, context.tokenizer.eos_token_id
    return TextProposer(
        model,
        target=TextTokenizer("target", context.tokenizer, context.target.vocab_size),
        own=TextTokenizer(options.model, model.tokenizer, model.vocab_size),
        ends=None if None in ends else ends,
        start=start_ids(model.tokenizer),
        skipped=start_ids(context.tokenizer),
        rule=Rule(False, options.min_confidence),
    )


@hookimpl
def paceline_proposers() -> tuple[ProposerSpec, ...]:
    """Declare the proposer ``draft_model``."""
    return (
        ProposerSpec(
            name="draft_model",
            summary="A chain drafted by a smaller model, or by some of the target's own layers",
            options=DraftModelOptions,
            requires_api=">=0.1,<0.2",
            describe=_describe,
            build=_build,
        ),
    )
