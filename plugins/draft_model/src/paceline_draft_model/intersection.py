"""The tokens that two vocabularies share, and the target's other tokens in those of the draft model.

Token-level intersection: Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms
for Heterogeneous Vocabularies" (arXiv 2502.05202), section 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.api import PluginError
from paceline_draft_model.token_text import TokenBytes, read_tokens

__all__ = ["Intersection"]


class Intersection:
    """Which ids of the target and of the draft model are the same text.

    Two tokens are the same if their bytes are, and both are special or neither is. Those that begin and end a text are
    matched by their roles as well.

    Args:
        name: Of the draft model, for messages.
        target: The target's tokenizer.
        draft: The draft model's.
        vocab_size: Ids of the target that may be drafted.
        draft_vocab_size: Width of the draft model's logits.

    Attributes:
        target_ids: int64 ``[shared]``, ascending.
        draft_ids: int64 ``[shared]``, what each is for the draft model; none twice.

    Raises:
        PluginError: if nothing is shared.
    """

    def __init__(self, name: str, target: Any, draft: Any, vocab_size: int, draft_vocab_size: int) -> None:
        self._tokens = read_tokens(target)
        own = {token_id: token for token_id, token in read_tokens(draft).items() if token_id < draft_vocab_size}
        known = {token_id: token for token_id, token in self._tokens.items() if token_id < vocab_size}
        pairs = _by_content(known, own) | _by_role(target, draft, known, own)
        self.target_ids = np.array(sorted(pairs), dtype=np.int64)
        self.draft_ids = np.array([pairs[token_id] for token_id in sorted(pairs)], dtype=np.int64)
        if not pairs:
            raise PluginError(
                f'draft model "{name}" shares none of its {len(own)} tokens with the {len(known)} of the target; '
                'choose another draft model, or set vocabulary="text"'
            )
        self._draft_of = np.full(vocab_size, -1, dtype=np.int64)
        self._draft_of[self.target_ids] = self.draft_ids
        self._pieces = {token.content: token_id for token_id, token in _preferred(own).items() if not token.is_special}
        self._longest = max(map(len, self._pieces), default=0)
        self._unknown = [] if draft.unk_token_id is None else [draft.unk_token_id]

    @property
    def is_shared(self) -> np.ndarray:
        """bool ``[ids of the target]``."""
        shared: np.ndarray = self._draft_of >= 0
        return shared

    def draft_of(self, target_ids: np.ndarray) -> np.ndarray:
        """The draft model's ids int64 ``[n]`` of the target's; -1 for what it lacks."""
        ids: np.ndarray = self._draft_of[target_ids]
        return ids

    def translate(self, target_ids: np.ndarray) -> list[int]:
        """A text of the target in tokens of the draft model: shared ones as they are, others in longest pieces."""
        translated: list[int] = []
        for token_id, own in zip(target_ids.tolist(), self.draft_of(target_ids).tolist(), strict=True):
            translated += [own] if own >= 0 else self._spell(token_id)
        return translated

    def _spell(self, token_id: int) -> list[int]:
        token = self._tokens.get(token_id)
        rest = b"" if token is None else token.content
        spelt: list[int] = []
        while rest:
            sizes = range(min(self._longest, len(rest)), 0, -1)
            size = next((size for size in sizes if rest[:size] in self._pieces), 0)
            spelt += [self._pieces[rest[:size]]] if size else self._unknown
            rest = rest[max(size, 1) :]
        return spelt


def _preferred(tokens: Mapping[int, TokenBytes]) -> dict[int, TokenBytes]:
    """One token for each content: of several the lowest id, and a byte written by its number last."""
    best: dict[tuple[bytes, bool], int] = {}
    for token_id in sorted(tokens, key=lambda token_id: (tokens[token_id].is_byte, token_id)):
        best.setdefault((tokens[token_id].content, tokens[token_id].is_special), token_id)
    return {token_id: tokens[token_id] for token_id in best.values() if tokens[token_id].content}


def _by_content(target: Mapping[int, TokenBytes], draft: Mapping[int, TokenBytes]) -> dict[int, int]:
    own = {(token.content, token.is_special): token_id for token_id, token in _preferred(draft).items()}
    contents = {token_id: (token.content, token.is_special) for token_id, token in _preferred(target).items()}
    return {token_id: own[content] for token_id, content in contents.items() if content in own}


def _by_role(
    target: Any, draft: Any, target_tokens: Mapping[int, TokenBytes], draft_tokens: Mapping[int, TokenBytes]
) -> dict[int, int]:
    """Pairs of tokens that end a text and that begin one, unless either is matched by content."""
    by_content = _by_content(target_tokens, draft_tokens)
    pairs: dict[int, int] = {}
    for role in ("eos_token_id", "bos_token_id"):
        theirs, own = getattr(target, role), getattr(draft, role)
        is_free = theirs not in by_content and own not in (*by_content.values(), *pairs.values())
        if theirs in target_tokens and own in draft_tokens and is_free and theirs not in pairs:
            pairs[theirs] = own
    return pairs
