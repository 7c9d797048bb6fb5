"""Whether the ids of two models mean the same text."""

from __future__ import annotations

from typing import Any

from paceline.api import PagedModel, PluginError, TargetFacts
from paceline_draft_model.token_text import token_names

__all__ = ["check_same_vocabulary"]

_REMEDY = 'choose a draft model with the target\'s own tokenizer, or set vocabulary="intersect" or vocabulary="text"'


def check_same_vocabulary(name: str, model: PagedModel, target: TargetFacts, tokenizer: Any) -> None:
    """Refuse a draft model under whose tokenizer an id of the target means something else, or nothing.

    Rows of the logits beyond a tokenizer are padding and may differ in number. Where a tokenizer is missing, only the
    sizes are compared.

    Args:
        name: Of the draft model.
        model: The draft model.
        target: The target.
        tokenizer: The target's, or ``None``.

    Raises:
        PluginError: naming both sizes, and the first id that differs with both texts.
    """
    if model.tokenizer is None or tokenizer is None:
        _check_sizes(name, model, target)
    elif model.tokenizer_fingerprint != target.tokenizer_fingerprint:
        _check_content(name, model.tokenizer, tokenizer)
    if model.vocab_size < target.vocab_size:
        raise PluginError(
            f'draft model "{name}" embeds {model.vocab_size} ids, the target has {target.vocab_size}; {_REMEDY}'
        )


def _check_sizes(name: str, model: PagedModel, target: TargetFacts) -> None:
    padded_size = target.config.get("vocab_size", target.vocab_size)
    if model.vocab_size not in (target.vocab_size, padded_size):
        raise PluginError(
            f'draft model "{name}" has a vocabulary of {model.vocab_size} ids, the target one of {target.vocab_size}, '
            f"and without both tokenizers they cannot be told to mean the same; {_REMEDY}"
        )


def _check_content(name: str, own: Any, targets: Any) -> None:
    own_names, target_names = token_names(own), token_names(targets)
    differing = (token_id for token_id in sorted(target_names) if own_names.get(token_id) != target_names[token_id])
    first = next(differing, None)
    if first is not None:
        own_text = repr(own_names[first]) if first in own_names else "nothing"
        raise PluginError(
            f'draft model "{name}" has another tokenizer: {len(own_names)} tokens, the target {len(target_names)}, and '
            f"id {first} is {own_text} for the draft model, {target_names[first]!r} for the target; {_REMEDY}"
        )
