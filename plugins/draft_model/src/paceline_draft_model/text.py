"""The proposer for any two tokenizers: what the draft model writes is tokenised again as the target would.

String-level exact match: Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms
for Heterogeneous Vocabularies" (arXiv 2502.05202), section 3.1. The verifier makes it exact at every temperature.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from paceline.api import CommittedBatch, Drafts, PagedModel, ProposeBatch, Proposer, ReleaseReason, RequestView
from paceline_draft_model.choosing import Rule
from paceline_draft_model.kv_group import KV_GROUP
from paceline_draft_model.own_tokens import OwnTokens, prompt_parts
from paceline_draft_model.retokenize import GrowingText, TextTokenizer, decoded

__all__ = ["TextProposer"]


class TextProposer(Proposer):
    """Drafts text greedily; its last token may be the beginning of a longer one, and is left out.

    ``k`` drafts take ``k + 1`` forwards. Nothing is drafted for a request whose text ends inside a character.

    Args:
        model: The draft model on a private group.
        target: The target's tokenizer.
        own: The draft model's.
        ends: The id that ends a text for the draft model, and for the target; ``None`` if either has none.
        start: Tokens that the draft model expects before every text.
        skipped: The target's own such tokens, at most one.
        rule: Gives the confidence at which drafts end.
    """

    def __init__(
        self,
        model: PagedModel,
        *,
        target: TextTokenizer,
        own: TextTokenizer,
        ends: tuple[int, int] | None,
        start: list[int],
        skipped: list[int],
        rule: Rule,
    ) -> None:
        self._kv = OwnTokens(model)
        self._target = target
        self._own = own
        self._own_end, self._target_end = ends or (-1, -1)
        self._new_text = partial(GrowingText, target, own, start, skipped)
        self._rule = rule
        self._texts: dict[str, GrowingText] = {}
        is_text = np.array([bool(content) for content in own.contents(range(model.vocab_size))])
        is_text[[token_id for token_id in own.special if token_id < model.vocab_size]] = False
        if self._own_end >= 0:
            is_text[self._own_end] = True
        self._bias: Any = np.where(is_text, 0.0, -np.inf)

    def propose(self, batch: ProposeBatch) -> Drafts:
        """Return chains as long as budgets, slots, the draft model's context and its confidence allow."""
        view, written = batch.kv[KV_GROUP], [list[int]() for _ in batch.requests]
        wanted: list[np.ndarray | None] = []
        for request, budget in zip(batch.requests, batch.budgets.tolist(), strict=True):
            tokens, is_whole = self._text(request).tokens(request.tokens)
            wanted.append(tokens if budget and is_whole and len(tokens) else None)
        for depth in range(int(batch.budgets.max(initial=0)) + 1):
            rows, logits = self._kv.feed(view, batch.requests, wanted)
            if not len(rows):
                break
            chosen, goes_on = self._choose(logits)
            stopped = np.setdiff1d(np.arange(len(wanted)), rows[goes_on & (batch.budgets[rows] > depth)])
            for row, token in zip(rows.tolist(), chosen.tolist(), strict=True):
                written[row].append(token)
                wanted[row] = np.append(wanted[row], token)
            for row in stopped.tolist():
                wanted[row] = None
        drafts = [self._as_target(ids)[:budget] for ids, budget in zip(written, batch.budgets.tolist(), strict=True)]
        return Drafts.from_lists(drafts)

    def _choose(self, logits: Any) -> tuple[np.ndarray, np.ndarray]:
        """The likeliest tokens int64 ``[rows]`` that are text or its end, and bool ``[rows]``: more may follow."""
        if isinstance(self._bias, np.ndarray):
            self._bias = logits.new_tensor(self._bias)  # on the device of the logits from now on
        logits = logits + self._bias
        chosen = np.array(logits.argmax(-1).tolist(), dtype=np.int64)
        is_sure = self._rule.confidence(logits, chosen) >= self._rule.min_confidence
        return chosen, is_sure & (chosen != self._own_end)

    def _as_target(self, ids: list[int]) -> list[int]:
        has_end = bool(ids) and ids[-1] == self._own_end
        text, is_whole = decoded(b"".join(self._own.contents(ids[: len(ids) - has_end])))
        tokens = self._target.encode(text)
        return [*tokens, self._target_end] if has_end and is_whole else tokens[:-1]

    def _text(self, request: RequestView) -> GrowingText:
        return self._texts.setdefault(request.request_id, self._new_text())

    def observe(self, committed: CommittedBatch) -> None:
        """Follow the target through prompts and recomputed tokens, no faster than it."""
        wanted = prompt_parts(committed, lambda request: self._text(request).tokens(request.tokens)[0])
        self._kv.feed(committed.kv[KV_GROUP], committed.requests, wanted)

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        """Forget these requests."""
        self._kv.release(request_ids)
        for name in request_ids:
            self._texts.pop(name, None)
