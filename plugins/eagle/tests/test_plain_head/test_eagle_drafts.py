"""In an engine, every draft is what the plain head drafts when it recomputes everything from the target's own features.

So the paged entries are those of the sequence's true tokens and features alone: whatever was rejected, preempted, cut
into chunks or found in the prefix cache leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.api import Drafts, ProposeBatch
from paceline_eagle.proposer import EagleProposer

NUM_TOKENS = 10
TREE = {"shape": "tree", "top_k": 3, "depth": 4, "total_tokens": 9}
HEADS: dict[str, dict[str, Any]] = {
    "eagle": {"kind": "eagle", "bias": True},
    "eagle3": {"kind": "eagle3"},
    "speculators": {
        "kind": "speculators_eagle3",
        "norm_before_residual": True,
        "own_embedding": True,
        "eagle_aux_hidden_state_layer_ids": [1, 4],
    },
}
SETTINGS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "preempting": {"num_gpu_blocks_override": 6, "block_size": 8},
    "chunked": {"max_num_batched_tokens": 14, "max_num_seqs": 4, "enable_prefix_caching": False},
    "cached": {"block_size": 4},
}


@dataclass
class Proposal:
    """One request's part of a ``propose`` call."""

    tokens: list[int]
    first: int
    budget: int
    temperature: float
    noise: Tensor  # [budget, vocab]
    drafted: list[int]
    parents: list[int] | None
    confidence: list[float]


def proposals(batch: ProposeBatch, first: np.ndarray, drafts: Drafts) -> Iterator[Proposal]:
    depths = range(1, int(batch.budgets.max()) + 1)
    noise = torch.stack([batch.noise(batch.positions + depth) for depth in depths], dim=1)
    for index, request in enumerate(batch.requests):
        length = int(drafts.lengths[index])
        yield Proposal(
            tokens=request.tokens.tolist(),
            first=int(first[index]),
            budget=int(batch.budgets[index]),
            temperature=request.sampling.temperature,
            noise=noise[index],
            drafted=drafts.tokens[index, :length].tolist(),
            parents=None if drafts.parents is None else drafts.parents[index, :length].tolist(),
            confidence=drafts.confidence[index, :length].tolist(),
        )


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Proposal]:
    """What the proposer was asked and answered, request by request."""
    answers: list[Proposal] = []
    propose = EagleProposer.propose

    def spy(self: EagleProposer, batch: ProposeBatch) -> Drafts:
        drafts = propose(self, batch)
        answers.extend(proposals(batch, batch.kv["eagle"].first, drafts))
        return drafts

    monkeypatch.setattr(EagleProposer, "propose", spy)
    return answers


class Truth:
    """The plain head on whole sequences, with the target's features from a transformers forward over them."""

    def __init__(self, plain_head: type, published: Any, target: str) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(target).requires_grad_(False)
        self.plain = plain_head(published, self.model.model.embed_tokens.weight, self.model.lm_head.weight)
        self.layers = published.config.get("eagle_aux_hidden_state_layer_ids") or (2, 3, 3)
        self.made: list[tuple[int, list[int], Any, list[Tensor]]] = []

    def after(self, tokens: list[int], first: int) -> tuple[Any, Tensor]:
        """The entries of ``tokens`` from slot ``first`` on, and the last one's state."""
        for made_first, sequence, entries, states in self.made:
            if made_first == first and sequence[: len(tokens)] == tokens:
                count = len(tokens) - max(first, 1)
                return entries.first(count), states[count - 1]
        self.made.append((first, tokens, *self.extended(tokens, max(first, 1))))
        return self.after(tokens, first)

    def extended(self, tokens: list[int], first: int) -> tuple[Any, list[Tensor]]:
        streams = self.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        features = [streams[layer][0] for layer in self.layers] if self.plain.is_eagle3 else [streams[-1][0]]
        fused, entries = self.plain.fuse(features), self.plain.entries()
        slots = range(first, len(tokens))
        return entries, [self.plain.extend(entries, tokens[slot], fused[slot - 1], slot) for slot in slots]

    def scores(self, state: Tensor, proposal: Proposal, depth: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the head's ids without noise, and with it as trees use it."""
        logits = self.plain.logits(state)
        noise = proposal.noise[depth][self.plain.ids]
        return logits.log_softmax(-1), (logits + proposal.temperature * noise).log_softmax(-1)

    def chain(self, proposal: Proposal) -> tuple[list[int], list[float]]:
        entries, state = self.after(proposal.tokens, proposal.first)
        tokens, joint = [], []
        for depth in range(proposal.budget):
            plain, noisy = self.scores(state, proposal, depth)
            best = int(noisy.argmax())
            joint.append(float(plain[best].exp()) * (joint[-1] if joint else 1.0))
            tokens.append(int(self.plain.ids[best]))
            state = self.plain.extend(entries, tokens[-1], state, len(proposal.tokens) + depth)
        return tokens, joint

    def tree(self, proposal: Proposal, top_k: int, depth: int) -> dict[tuple[int, ...], float]:
        """Joint confidence of each node, by the tokens of its path."""
        entries, state = self.after(proposal.tokens, proposal.first)
        level, pool = [((), 0.0, entries, state)], []
        for number in range(min(depth, proposal.budget)):
            found = []
            for path, joint, entries, state in level:
                _, noisy = self.scores(state, proposal, number)
                for value, index in zip(*noisy.topk(top_k), strict=True):
                    found.append(((*path, int(self.plain.ids[index])), joint + float(value), entries, state))
            pool += found
            width = min(top_k, proposal.budget)
            level = [self.grown(node, proposal) for node in sorted(found, key=lambda node: -node[1])[:width]]
        kept = sorted(pool, key=lambda node: -node[1])[: proposal.budget]
        return {path: float(np.exp(joint)) for path, joint, _, _ in kept}

    def grown(self, node: tuple, proposal: Proposal) -> tuple:
        path, joint, entries, state = node
        entries = entries.first(len(entries.slots))
        state = self.plain.extend(entries, path[-1], state, len(proposal.tokens) + len(path) - 1)
        return path, joint, entries, state


def longest_first(answers: list[Proposal]) -> list[Proposal]:
    """So that the plain head runs over each sequence once."""
    return sorted(answers, key=lambda proposal: -len(proposal.tokens))


def paths_of(proposal: Proposal) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(proposal.drafted, proposal.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def prompts() -> list[dict[str, list[int]]]:
    random = np.random.default_rng(5)
    shared = random.integers(0, 96, 17).tolist()
    lengths = (1, 19)
    ids = [random.integers(0, 96, n).tolist() for n in lengths] + [shared, [*shared, 3, 4], [*shared, 9]]
    return [{"prompt_token_ids": tokens} for tokens in ids]


def params() -> list[SamplingParams]:
    return [
        SamplingParams(max_tokens=NUM_TOKENS, seed=index, temperature=(0.0, 1.0, 0.6)[index % 3], ignore_eos=True)
        for index in range(len(prompts()))
    ]


def two_rounds(llm: LLM) -> list[list[int]]:
    """The prompts' answers, and those of the prompts with most of the answers in them."""
    first = llm.generate(prompts(), params(), use_tqdm=False)
    longer = [{"prompt_token_ids": o.prompt_token_ids + o.outputs[0].token_ids[:7]} for o in first]
    return [output.outputs[0].token_ids for output in first + llm.generate(longer, params(), use_tqdm=False)]


@pytest.fixture(scope="module")
def without_speculation(tiny_target: str) -> list[list[int]]:
    with LLM(tiny_target, numerics="exact", max_model_len=128, enable_prefix_caching=False) as llm:
        return two_rounds(llm)


@pytest.fixture
def run(
    checkpoint: Callable[..., Any],
    plain_head: type,
    tiny_target: str,
    tmp_path: Path,
    recorded: list[Proposal],
    without_speculation: list[list[int]],
) -> Callable[..., tuple[Truth, list[Proposal]]]:
    """``(head, setting, options, num drafts)``: both rounds, whose answers are those without speculation."""

    def generate(head: str, setting: str, options: dict[str, Any], num_drafts: int) -> tuple[Truth, list[Proposal]]:
        published = checkpoint(**HEADS[head])
        with LLM(
            tiny_target,
            numerics="exact",
            max_model_len=128,
            proposer="eagle",
            proposer_options={"model": published.write(tmp_path)} | options,
            num_speculative_tokens=num_drafts,
            **SETTINGS[setting],
        ) as llm:
            assert two_rounds(llm) == without_speculation
            assert (llm.engine.stats.num_preemptions > 0) == (setting == "preempting")
        assert len(recorded) > 50
        if setting == "chunked":  # nothing is found in a cache, so the head has seen all
            assert {proposal.first for proposal in recorded} == {0}
        return Truth(plain_head, published, tiny_target), longest_first(recorded)

    return generate


CASES = [(head, "roomy") for head in HEADS]
CASES += [(list(HEADS)[number % 3], setting) for number, setting in enumerate(SETTINGS) if setting != "roomy"]


@pytest.mark.parametrize(("head", "setting"), CASES)
def test_chains_are_those_of_the_plain_head(run: Callable[..., Any], head: str, setting: str) -> None:
    truth, answers = run(head, setting, {}, 3)
    for proposal in answers:
        tokens, joint = truth.chain(proposal)
        assert proposal.drafted == tokens
        assert proposal.confidence == pytest.approx(joint, rel=1e-3)


@pytest.mark.parametrize(("head", "setting"), CASES)
def test_trees_are_those_of_the_plain_head(run: Callable[..., Any], head: str, setting: str) -> None:
    truth, answers = run(head, setting, TREE, TREE["total_tokens"])
    for proposal in answers:
        wanted = truth.tree(proposal, TREE["top_k"], TREE["depth"])
        drafted = dict(zip(paths_of(proposal), proposal.confidence, strict=True))
        assert drafted.keys() == wanted.keys()
        assert drafted == pytest.approx(wanted, rel=1e-3)
