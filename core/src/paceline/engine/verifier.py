"""Verification: the target chooses a token at every row; drafts that equal its choice saved time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from paceline.engine.drafted import drafted_before
from paceline.engine.outputs import Logprob
from paceline.engine.plan import Plan
from paceline.engine.request import FinishReason, Request
from paceline.engine.sampling_table import SamplingTable
from paceline.engine.target_pass import TargetOutput
from paceline.sampling.choice import sample
from paceline.sampling.logprobs import token_logprobs
from paceline.verify.chain import accept_chain
from paceline.verify.tree import accept_tree

__all__ = ["Outcome", "Verifier"]


@dataclass(slots=True)
class Outcome:
    """What a step chose. Host arrays; ``E`` emitters as in the plan, ``K`` the widest draft.

    Attributes:
        tokens: int64 ``[E, K + 1]``, emitted tokens, padded with -1.
        num_emitted: int64 ``[E]``, after the cut at stops and limits.
        num_accepted: int64 ``[E]``, emitted tokens that were drafts.
        nodes: int64 ``[E, K]``, draft nodes of the followed path, padded with -1.
        finished: ``emitter index -> (reason, stop token or string asked for)``.
        logprobs: ``emitter index -> one dict per emitted token``, for requests that asked.
        prompt_logprobs: ``request index -> one dict per prompt token scored in this step``, for requests that asked.
        invalid: Emitter indices whose scores were NaN, or none finite, for the token after those emitted.
        retried: The same for emitters with drafts: a draft may be to blame, so the row runs again without any.
    """

    tokens: np.ndarray
    num_emitted: np.ndarray
    num_accepted: np.ndarray
    nodes: np.ndarray
    finished: dict[int, tuple[FinishReason, int | str | None]] = field(default_factory=dict)
    logprobs: dict[int, list[dict[int, Logprob]]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[dict[int, Logprob]]] = field(default_factory=dict)
    invalid: list[int] = field(default_factory=list)
    retried: list[int] = field(default_factory=list)

    @classmethod
    def empty(cls) -> Outcome:
        """The outcome of a step in which nobody emits."""
        none, matrix = np.zeros(0, dtype=np.int64), np.zeros((0, 1), dtype=np.int64)
        return cls(matrix, none, none, matrix[:, :0])


def _padded(values: np.ndarray, counts: np.ndarray, fill: int) -> np.ndarray:
    """Spread groups of ``counts`` values over the rows of a matrix."""
    if len(values) == len(counts):
        return values[:, None]
    width = int(counts.max(initial=0))
    out = np.full((len(counts), width), fill, dtype=values.dtype)
    out[np.arange(width) < counts[:, None]] = values
    return out


class Verifier:
    """The equality rule over a plan: a function of plan and logits; it keeps nothing between steps.

    Source: drafter-invariant sampling (Daliri, Musco, Suresh 2024) and, for trees, Gumbel-max list sampling (Rowan,
    Phan, Khisti 2025).
    """

    def __init__(self, table: SamplingTable) -> None:
        self._table = table

    def verify(self, plan: Plan, output: TargetOutput) -> Outcome:
        """Choose at every choice row, follow the drafts that equal the choices, cut at stops and limits."""
        outcome = self._choose(plan, output) if len(plan.emitters) else Outcome.empty()
        _add_prompt_logprobs(plan, outcome, output.prompt_logits)
        return outcome

    def _choose(self, plan: Plan, output: TargetOutput) -> Outcome:
        positions = plan.positions[plan.choice_rows] + 1
        table_rows = plan.table_rows[plan.emitters]
        has_drafts = plan.drafts.tokens.shape[1] > 0
        drafted = drafted_before(plan) if has_drafts and self._table.reads_drafts(table_rows) else None
        rows = self._table.gather(np.repeat(table_rows, plan.choice_counts), positions, drafted)
        choice = sample(output.logits, rows)
        chosen = _padded(choice.tokens.cpu().numpy(), plan.choice_counts, -1)
        invalid = _padded(choice.invalid.cpu().numpy(), plan.choice_counts, False)
        outcome = _follow(plan, chosen)
        _cut(plan, outcome)
        _cut_invalid(plan, outcome, invalid)
        _cut_at_stop_strings(plan, outcome)
        _add_logprobs(plan, outcome, output.logits)
        return outcome


def _emitter_drafts(plan: Plan) -> tuple[np.ndarray, np.ndarray | None]:
    """Draft tokens and parents by emitter; the decoding requests are the first emitters."""
    num_other = len(plan.emitters) - plan.num_decoding
    padding = ((0, num_other), (0, 0))
    tokens = np.pad(plan.drafts.tokens, padding, constant_values=-1)
    parents = plan.drafts.parents
    return tokens, None if parents is None else np.pad(parents, padding, constant_values=-1)


def _follow(plan: Plan, chosen: np.ndarray) -> Outcome:
    if not plan.drafts.tokens.shape[1]:
        ones = np.ones(len(chosen), dtype=np.int64)
        return Outcome(chosen, ones, np.zeros_like(ones), np.empty((len(chosen), 0), dtype=np.int64))
    tokens, parents = _emitter_drafts(plan)
    if parents is None:
        accepted = accept_chain(torch.from_numpy(tokens), torch.from_numpy(chosen)).numpy()
        nodes = np.where(np.arange(tokens.shape[1]) < accepted[:, None], np.arange(tokens.shape[1]), -1)
    else:
        path = accept_tree(torch.from_numpy(tokens), torch.from_numpy(parents), torch.from_numpy(chosen))
        accepted, nodes = path.num_accepted.numpy(), path.nodes.numpy()
    rows = np.concatenate([np.zeros((len(chosen), 1), dtype=np.int64), nodes + 1], axis=1)
    emitted = np.take_along_axis(chosen, rows, axis=1)
    emitted[np.arange(emitted.shape[1]) > accepted[:, None]] = -1
    return Outcome(emitted, accepted + 1, accepted, nodes)


def _cut(plan: Plan, outcome: Outcome) -> None:
    """End each run at the first stop token or at the request's limit, whichever comes first in token order."""
    counts = outcome.num_emitted.tolist()
    for index, (request, run) in enumerate(zip(plan.emitting, outcome.tokens.tolist(), strict=True)):
        if counts[index] >= request.room or not request.stop_ids.isdisjoint(run):
            _cut_one(request, outcome, index)
    outcome.num_accepted = np.minimum(outcome.num_accepted, outcome.num_emitted)


def _cut_one(request: Request, outcome: Outcome, index: int) -> None:
    room = request.room
    run = outcome.tokens[index, : min(room, int(outcome.num_emitted[index]))]
    stops = np.flatnonzero(np.isin(run, list(request.stop_ids)))
    length = int(stops[0]) + 1 if len(stops) else len(run)
    if len(stops):
        token = int(run[stops[0]])
        asked = token if token in request.params.stop_token_ids else None
        outcome.finished[index] = (FinishReason.STOP, asked)
    elif length == room:
        outcome.finished[index] = (FinishReason.LENGTH, None)
    outcome.tokens[index, length:] = -1
    outcome.num_emitted[index] = length


def _cut_invalid(plan: Plan, outcome: Outcome, invalid: np.ndarray) -> None:
    """End each run before the first row of the followed path that had no usable scores.

    Attention multiplies what a row does not see by 0, and 0 * NaN is NaN: a draft can spoil the rows before it.
    """
    if not invalid.any():
        return
    rows = np.concatenate([np.zeros((len(invalid), 1), dtype=np.int64), outcome.nodes + 1], axis=1)
    on_path = np.arange(rows.shape[1]) < outcome.num_emitted[:, None]
    bad = np.take_along_axis(invalid, rows, axis=1) & on_path
    for index in np.flatnonzero(bad.any(axis=1)).tolist():
        length = int(bad[index].argmax())
        outcome.tokens[index, length:] = -1
        outcome.num_emitted[index] = length
        outcome.finished.pop(index, None)
        (outcome.retried if plan.choice_counts[index] > 1 else outcome.invalid).append(index)
    outcome.num_accepted = np.minimum(outcome.num_accepted, outcome.num_emitted)


def _cut_at_stop_strings(plan: Plan, outcome: Outcome) -> None:
    """End each run at the token that completes a stop string. Only requests that follow their text take part."""
    for index, request in enumerate(plan.emitting):
        if request.text is None:
            continue
        count = int(outcome.num_emitted[index])
        ended_by_token = outcome.finished.get(index, (None, None))[0] is FinishReason.STOP
        length = request.text.extend(outcome.tokens[index, : count - ended_by_token].tolist())
        if length is not None:
            outcome.finished[index] = (FinishReason.STOP, request.text.stop)
            outcome.tokens[index, length:] = -1
            outcome.num_emitted[index] = length
    outcome.num_accepted = np.minimum(outcome.num_accepted, outcome.num_emitted)


def _add_logprobs(plan: Plan, outcome: Outcome, logits: torch.Tensor) -> None:
    for index, request in enumerate(plan.emitting):
        top_n = request.params.logprobs
        if top_n is not None and outcome.num_emitted[index]:
            outcome.logprobs[index] = _emitted_logprobs(plan, outcome, index, logits, top_n)


def _emitted_logprobs(
    plan: Plan, outcome: Outcome, index: int, logits: torch.Tensor, top_n: int
) -> list[dict[int, Logprob]]:
    count = int(outcome.num_emitted[index])
    rows = int(plan.choice_counts[:index].sum()) + np.concatenate([[0], outcome.nodes[index, : count - 1] + 1])
    tokens = torch.from_numpy(outcome.tokens[index, :count]).to(logits.device)
    return _logprob_entries(logits[torch.from_numpy(rows).to(logits.device)], tokens, top_n)


def _add_prompt_logprobs(plan: Plan, outcome: Outcome, logits: torch.Tensor) -> None:
    """Scores of the prompt tokens that follow the plan's prompt rows."""
    if not len(plan.prompt_rows):
        return
    owners = plan.row_seq[plan.prompt_rows]
    for index in np.unique(owners).tolist():
        request = plan.requests[index]
        own = np.flatnonzero(owners == index)
        tokens = request.tokens[plan.positions[plan.prompt_rows[own]] + 1]
        rows = logits[int(own[0]) : int(own[-1]) + 1]
        entries = _logprob_entries(rows, torch.from_numpy(tokens).to(logits.device), request.params.prompt_logprobs)
        outcome.prompt_logprobs[index] = entries


def _logprob_entries(logits: torch.Tensor, tokens: torch.Tensor, top_n: int) -> list[dict[int, Logprob]]:
    own, top_ids, top_logprobs = token_logprobs(logits, tokens, top_n)
    entries = []
    for token, logprob, ids, values in zip(
        tokens.tolist(), own.tolist(), top_ids.tolist(), top_logprobs.tolist(), strict=True
    ):
        top = {i: Logprob(logprob=value, rank=rank) for rank, (i, value) in enumerate(zip(ids, values, strict=True), 1)}
        entries.append(top if token in top else {token: Logprob(logprob=logprob)} | top)
    return entries
