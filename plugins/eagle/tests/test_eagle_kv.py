"""The head's entries in the cache, and what the proposer keeps of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.api import CommittedBatch, Drafts, ProposeBatch, TargetFacts
from paceline_eagle.checkpoint import load_head
from paceline_eagle.proposer import EagleProposer
from paceline_eagle.runner import HeadRunner

BLOCK = 8
PROMPT = np.random.default_rng(1).integers(0, 96, 24).tolist()


@pytest.fixture
def build(checkpoint: Callable[..., Any], tiny_target: str, tmp_path: Path) -> Callable[..., LLM]:
    def engine(seed: int = 0, **settings: Any) -> LLM:
        return LLM(
            tiny_target,
            numerics="exact",
            max_model_len=128,
            block_size=BLOCK,
            proposer="eagle",
            proposer_options={"model": checkpoint("eagle3", seed=seed).write(tmp_path / str(seed))},
            num_speculative_tokens=3,
            **settings,
        )

    return engine


@pytest.fixture
def llm(build: Callable[..., LLM]) -> Iterator[LLM]:
    with build() as made:
        yield made


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Slots of the rows of each forward of the head, those of drafts among them."""
    slots: list[list[int]] = []
    forward = HeadRunner.forward

    def spy(self: HeadRunner, view: Any, **rows: Any) -> torch.Tensor:
        slots.append(rows["slots"].tolist())
        return forward(self, view, **rows)

    monkeypatch.setattr(HeadRunner, "forward", spy)
    return slots


@pytest.fixture
def firsts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the head's entries begin, for each request that drafts."""
    seen: list[int] = []
    propose = EagleProposer.propose

    def spy(self: EagleProposer, batch: ProposeBatch) -> Drafts:
        drafts = propose(self, batch)
        seen.extend(batch.kv["eagle"].first.tolist())
        return drafts

    monkeypatch.setattr(EagleProposer, "propose", spy)
    return seen


def generate(llm: LLM, tokens: list[int], num_tokens: int, **prompt: Any) -> list[int]:
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    [output] = llm.generate([{"prompt_token_ids": tokens, **prompt}], params, use_tqdm=False)
    return output.outputs[0].token_ids


def test_a_prefix_hit_brings_the_heads_entries_along(llm: LLM, fed: list[list[int]], firsts: list[int]) -> None:
    generate(llm, PROMPT, 2)  # too short for a draft: the prompt's entries are made when it is observed
    assert sorted(slot for slots in fed for slot in slots) == list(range(1, 24))
    fed.clear()
    generate(llm, [*PROMPT, 5, 6], 6)
    assert set(firsts) == {0}
    assert min(slot for slots in fed for slot in slots) == 24


def test_a_prefix_hit_without_them_starts_late(llm: LLM, fed: list[list[int]], firsts: list[int]) -> None:
    generate(llm, PROMPT, 1)  # ends in the step that computes it, so that the head never sees its features
    assert fed == []
    generate(llm, [*PROMPT, 5, 6], 6)
    assert set(firsts) == {24}
    assert min(slot for slots in fed for slot in slots) == 24


def test_another_domain_finds_none_of_it(llm: LLM, fed: list[list[int]]) -> None:
    for domain in ("a", "b"):
        fed.clear()
        generate(llm, PROMPT, 2, trust_domain=domain)
        assert sorted(slot for slots in fed for slot in slots) == list(range(1, 24))


def test_a_request_may_draft_later_than_it_decodes(build: Callable[..., LLM], firsts: list[int]) -> None:
    """Steps without a draft leave no gap: other requests take the rows that it could draft with."""
    with build(max_num_batched_tokens=6, max_num_seqs=6, enable_prefix_caching=False) as llm:
        params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
        prompts = [{"prompt_token_ids": PROMPT[: 3 + index]} for index in range(6)]
        outputs = llm.generate(prompts, params, use_tqdm=False)
    num_drafts = sum(output.metrics.num_drafts for output in outputs)
    num_accepted = sum(output.metrics.num_accepted_tokens for output in outputs)
    assert num_drafts < 6 * 6 - num_accepted  # the steps of six requests, less the last, which has no room for drafts
    assert set(firsts) == {0}


def test_slot_0_is_cleared_once_for_what_is_new(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[int] = []
    clear = HeadRunner.clear_first_slots

    def spy(self: HeadRunner, view: Any, requests: np.ndarray) -> None:
        cleared.extend(requests.tolist())
        clear(self, view, requests)

    monkeypatch.setattr(HeadRunner, "clear_first_slots", spy)
    generate(llm, PROMPT, 6)
    generate(llm, [*PROMPT, 5], 6)
    assert cleared == [0]


def test_clearing_writes_zeros(checkpoint: Callable[..., Any], target: TargetFacts, tmp_path: Path) -> None:
    written: list[tuple[Any, ...]] = []

    def attention(view: Any, **rows: Any) -> Callable[..., None]:
        return lambda *call: written.append((rows, *call))

    head = load_head(checkpoint("eagle3").write(tmp_path), target)
    runner = HeadRunner(head, cast(Any, SimpleNamespace(target=target, attention=attention)))
    runner.clear_first_slots(cast(Any, None), np.array([2, 5]))
    [(rows, layer, query, key, value)] = written
    assert rows["row_request"].tolist() == [2, 5] and rows["slots"].tolist() == [0, 0] and "first" not in rows
    assert layer == 0 and query.shape == (2, 4, 8) and key.shape == value.shape == (2, 2, 8)
    assert not key.any() and not value.any()


def test_nothing_is_kept_of_requests_that_are_gone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    proposers: list[EagleProposer] = []
    observe = EagleProposer.observe

    def spy(self: EagleProposer, committed: CommittedBatch) -> None:
        proposers.append(self)
        observe(self, committed)
        assert len(self._backlogs) <= len(committed.requests)

    monkeypatch.setattr(EagleProposer, "observe", spy)
    generate(llm, PROMPT, 6)
    assert proposers[0]._backlogs == {}


def test_a_request_whose_features_are_not_known_does_not_draft() -> None:
    asked: list[list[int]] = []

    def draft(batch: Any, view: Any, states: torch.Tensor, budgets: np.ndarray) -> Drafts:
        asked.append(budgets.tolist())
        return Drafts.empty(len(budgets))

    runner = SimpleNamespace(
        fuse=lambda features: features["final"],
        forward=lambda view, hidden, **rows: hidden,
        clear_first_slots=lambda view, requests: None,
    )
    view = SimpleNamespace(computed=np.zeros(2, np.int64), first=np.zeros(2, np.int64), report=lambda *ranges: None)
    names = ("unknown", "known")
    requests = [SimpleNamespace(request_id=name, tokens=np.arange(4), num_prompt_tokens=3) for name in names]
    committed = SimpleNamespace(
        requests=requests[1:],
        row_request=np.zeros(3, np.int64),
        positions=np.arange(3),
        computed=np.array([[0, 3]]),
        recomputation=[False],
        features={"final": torch.zeros(3, 4)},
        kv={"eagle": view},
    )
    batch = SimpleNamespace(requests=requests, budgets=np.array([2, 3]), kv={"eagle": view})
    proposer = EagleProposer(cast(Any, runner), cast(Any, SimpleNamespace(draft=draft)))
    assert proposer.propose(cast(Any, batch)).lengths.tolist() == [0, 0]
    proposer.observe(cast(Any, committed))
    proposer.propose(cast(Any, batch))
    assert asked == [[0, 3]]
