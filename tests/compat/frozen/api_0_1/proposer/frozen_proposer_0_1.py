"""Three proposers: from memory, from the target's weights on own KV, and a tree from the target's embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from paceline.api import (
    CommittedBatch,
    Drafts,
    DraftShape,
    KVGroup,
    Placement,
    PluginError,
    ProposeBatch,
    Proposer,
    ProposerCapabilities,
    ProposerContext,
    ProposerSpec,
    ReleaseReason,
    TargetFacts,
    chain_lookahead,
    hookimpl,
    no_lookahead,
)


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rule: Literal["choose", "noise"] = "choose"


class Memory(Proposer):
    """Drafts what followed a token before, in the same trust domain."""

    def __init__(self, options: Options, context: ProposerContext) -> None:
        self.after: dict[str, dict[int, int]] = {}
        self.num_drafted: dict[str, int] = {}
        self.is_closed = False

    def propose(self, batch: ProposeBatch) -> Drafts:
        rows = []
        for request, last, budget in zip(batch.requests, batch.last_tokens.tolist(), batch.budgets, strict=True):
            assert request.num_prompt_tokens <= len(request.tokens) and request.tokens[-1] == last
            assert request.sampling.temperature >= 0.0 and 0.0 < request.sampling.top_p <= 1.0
            after, row = self.after.get(request.trust_domain, {}), [last]
            while len(row) <= budget and row[-1] in after:
                row.append(after[row[-1]])
            rows.append(row[1:])
            self.num_drafted[request.request_id] = len(row) - 1
        return Drafts.from_lists(rows)

    def observe(self, committed: CommittedBatch) -> None:
        assert committed.computed.shape == committed.restored.shape == committed.emitted.shape
        for index, token, following in zip(
            committed.row_request, committed.tokens.tolist(), committed.next_tokens.tolist(), strict=True
        ):
            domain = committed.requests[index].trust_domain
            self.after.setdefault(domain, {})[token] = following

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        if reason != ReleaseReason.PREEMPTED:
            for request_id in request_ids:
                self.num_drafted.pop(request_id, None)

    def close(self) -> None:
        self.is_closed = True


class Paged(Proposer):
    """Drafts a chain with the target's own weights, as the verifier would choose it."""

    def __init__(self, options: Options, context: ProposerContext) -> None:
        self.rule = options.rule
        self.vocab_size = context.target.vocab_size
        self.model = context.load_model("target", "frozen")
        if self.model.tokenizer_fingerprint != context.target.tokenizer_fingerprint:
            raise PluginError("the target's own weights have another tokenizer; report this")

    def propose(self, batch: ProposeBatch) -> Drafts:
        view, last = batch.kv["frozen"], batch.positions
        rows: list[list[int]] = [[] for _ in batch.requests]
        for depth in range(int(batch.budgets.max())):
            room = np.minimum(view.capacity, self.model.max_positions)
            active = (batch.budgets > depth) & (last + depth < room)
            if not active.any():
                break
            starts = np.minimum(view.computed, last + depth)
            stops = np.where(active, last + depth + 1, starts)
            known = [[*request.tokens, *row] for request, row in zip(batch.requests, rows, strict=True)]
            fed = [known[index][start:stop] for index, (start, stop) in enumerate(zip(starts, stops, strict=True))]
            logits = self.model.forward(view, np.array(sum(fed, []), dtype=np.int64), starts, stops - starts)
            view.report(np.where(active, stops, view.computed), view.first)
            scores = logits.new_zeros(len(rows), self.vocab_size)
            scores[np.flatnonzero(active)] = logits[:, : self.vocab_size]
            chosen = self.choose(batch, scores, last + depth + 1)
            for index in np.flatnonzero(active):
                rows[index].append(chosen[index])
        return Drafts.from_lists(rows)

    def choose(self, batch: ProposeBatch, scores: Any, positions: np.ndarray) -> list[int]:
        if self.rule == "choose":
            return batch.choose(scores, positions).tolist()
        temperatures = [request.sampling.temperature or 1.0 for request in batch.requests]
        scaled = scores / scores.new_tensor(temperatures)[:, None]
        return (scaled.log_softmax(-1) + batch.noise(positions)).argmax(-1).tolist()


class Branching(Proposer):
    """Two candidates for the next token, and one more below the first."""

    def __init__(self, options: Options, context: ProposerContext) -> None:
        self.context = context
        self.norm = context.open_checkpoint()["model.norm.weight"]
        self.num_rows = 0

    def propose(self, batch: ProposeBatch) -> Drafts:
        self.read(batch)
        trees = [
            self.tree(last, budget)
            for last, budget in zip(batch.last_tokens.tolist(), batch.budgets.tolist(), strict=True)
        ]
        return Drafts.from_lists([tokens for tokens, _ in trees], [parents for _, parents in trees])

    def tree(self, last: int, budget: int) -> tuple[list[int], list[int]]:
        first, second = self.likely(last)
        return [first, second, self.likely(first)[0]][:budget], [-1, -1, 0][:budget]

    def likely(self, token: int) -> list[int]:
        import torch

        ids = torch.tensor([token], device=self.context.target.device)
        hidden = self.context.embed(ids) * self.norm.to(ids.device)
        return self.context.logits(hidden)[0, : self.context.target.vocab_size].topk(2).indices.tolist()

    def read(self, batch: ProposeBatch) -> None:
        """Write what is known into a private group, and look at it."""
        import torch

        view = batch.kv["reading"]
        view.reserve(batch.positions + 1)
        stops = np.minimum(view.capacity, batch.positions + 1)
        slots = [np.arange(start, max(start, stop)) for start, stop in zip(view.computed, stops, strict=True)]
        row_request = np.repeat(np.arange(len(slots)), [len(own) for own in slots])
        if not len(row_request):
            return
        known = [request.tokens[own] for request, own in zip(batch.requests, slots, strict=True)]
        ids = torch.from_numpy(np.concatenate(known)).to(self.context.target.device)
        rows = self.context.embed(ids)[:, None, :16].contiguous()
        attend = self.context.attention(view, row_request=row_request, slots=np.concatenate(slots))
        assert bool(attend(0, rows, rows, rows, scaling=0.25).isfinite().all())
        view.report(np.maximum(view.computed, stops))

    def observe(self, committed: CommittedBatch) -> None:
        assert committed.top_tokens is not None and len(committed.top_tokens) == len(committed.tokens)
        for layer in (0, "final"):
            assert len(committed.features[layer]) == len(committed.positions)
        self.num_rows += len(committed.tokens) - int(committed.recomputation.sum())


def describe_memory(options: Options, target: TargetFacts) -> ProposerCapabilities:
    return ProposerCapabilities(max_tokens=8, lookahead_slots=no_lookahead)


def describe_paged(options: Options, target: TargetFacts) -> ProposerCapabilities:
    size = target.hidden_size // target.config["num_attention_heads"]
    group = KVGroup(
        name="frozen",
        num_layers=target.num_layers,
        num_kv_heads=target.config["num_key_value_heads"],
        key_size=size,
        value_size=size,
        dtype=target.dtype,
        fingerprint=target.weights_fingerprint,
    )
    return ProposerCapabilities(
        max_tokens=8, lookahead_slots=chain_lookahead, kv_groups=(group,), placement=Placement.DEVICE
    )


def describe_branching(options: Options, target: TargetFacts) -> ProposerCapabilities:
    sizes = {"num_layers": 1, "num_kv_heads": 1, "key_size": 16, "value_size": 16}
    group = KVGroup(name="reading", dtype=target.dtype, fingerprint="0" * 64, private=True, **sizes)
    return ProposerCapabilities(
        max_tokens=3,
        shape=DraftShape.TREE,
        hidden_layers=(0, "final"),
        target_top_k=2,
        kv_groups=(group,),
        recompute_tail=1,
    )


def spec(name: str, describe: Callable[[Options, TargetFacts], ProposerCapabilities], build: Any) -> ProposerSpec:
    return ProposerSpec(
        name=name, summary=build.__doc__, options=Options, requires_api=">=0.1,<0.2", describe=describe, build=build
    )


@hookimpl
def paceline_proposers() -> list[ProposerSpec]:
    return [
        spec("memory", describe_memory, Memory),
        spec("paged", describe_paged, Paged),
        spec("branching", describe_branching, Branching),
    ]
