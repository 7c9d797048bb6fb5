"""What a proposer is held to: it may draft well or badly, and must change nothing else."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from paceline.api import DraftShape, ProposerCapabilities, ReleaseReason
from paceline.testing.comparisons import check_field, check_same, check_tokens
from paceline.testing.contract import Contract, should
from paceline.testing.engines import Ask, add, finish, prompts, random_tokens, run, step
from paceline.testing.memory import check_memory
from paceline.testing.models import MAX_MODEL_LEN
from paceline.testing.spies import Draft, spy_on

__all__ = ["ProposerContract"]

NUM_STEPS = 8  # at each of so many first steps of a request something happens to it
REPETITIVE = random_tokens(3, 6) * 4
_ODD_SETTINGS: tuple[dict[str, Any], ...] = (
    {"max_num_batched_tokens": 8, "max_num_seqs": 4},
    {"num_gpu_blocks_override": 13, "max_num_seqs": 4},
    {"max_num_seqs": 1, "block_size": 4},
    {"enable_prefix_caching": False},
)


class ProposerContract(Contract):
    """Tests of a proposer.

    Attributes:
        num_speculative_tokens: Most tokens that a request may draft in the tests, within what the proposer gives.
    """

    kind = "proposer"
    num_speculative_tokens: ClassVar[int] = 4
    settings = (*Contract.settings, "num_speculative_tokens")

    def choice(self) -> dict[str, Any]:
        """The configuration's fields."""
        return {
            "proposer": self.plugin,
            "proposer_options": dict(self.options),
            "num_speculative_tokens": self.num_speculative_tokens,
        }

    def capabilities(self) -> ProposerCapabilities:
        """What the proposer describes for the model of the tests."""
        with self.plain() as llm:
            described: ProposerCapabilities = self.load().describe(llm.built.facts)
        return described

    # -- what it says of itself ----------------------------------------------------------------------------------

    def test_capabilities_hold_together(self) -> None:
        """What ``describe`` says is in range, and the same each time."""
        own = self.capabilities()
        assert own.max_tokens >= 1, f"max_tokens is {own.max_tokens}; describe 1 or more"
        slots = [own.lookahead_slots(budget) for budget in range(MAX_MODEL_LEN)]
        assert slots[0] == 0, f"lookahead_slots(0) is {slots[0]}: who drafts nothing needs no slots"
        assert slots == sorted(slots), f"lookahead_slots falls as the budget grows: {slots}"
        again = self.capabilities()
        same = replace(own, lookahead_slots=again.lookahead_slots) == again
        assert same, f"describe said {own}, then {again}; it is a function of options and target alone"

    # -- what it answers -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("budget", [1, 2, 7])
    def test_drafts_keep_to_budgets(self, budget: int) -> None:
        """Every answer fits its batch: rows, budgets, vocabulary, the optional fields."""
        with self.engine(num_speculative_tokens=budget) as llm:
            spy = spy_on(llm)
            run(llm, [Ask(tokens=tokens, max_tokens=24) for tokens in prompts()])
            run(llm, [Ask(tokens=REPETITIVE, temperature=0.0)])
        own, vocab_size = self.capabilities(), llm.built.facts.vocab_size
        for drafts in spy.answers:
            width = np.shape(drafts.tokens)
            assert drafts.parents is None or own.shape is DraftShape.TREE, "parents are given, and the shape is chain"
            told = drafts.probabilities is not None
            assert told == own.emits_probabilities, f"emits_probabilities is {own.emits_probabilities}, drafts differ"
            check_field("confidence", drafts.confidence, width)
            check_field("probabilities", drafts.probabilities, (*width, vocab_size))
            check_field("source", drafts.source, width[:1])

    @should
    def test_drafts_something(self) -> None:
        """Of repetitive and random prompts, some are drafted for."""
        with self.engine() as llm:
            run(llm, [Ask(tokens=tokens, temperature=0.0, max_tokens=40) for tokens in prompts()])
            assert llm.engine.stats.num_draft_tokens, "not a token was drafted in the whole test"

    def test_drafts_repeat_under_a_seed(self) -> None:
        """The same requests under the same seeds get the same drafts in a new engine."""
        first, second = self._drafts_of_all(), self._drafts_of_all()
        check_same(first, second, "a second run of the same requests drafts otherwise; seed what is drawn at random")

    def test_what_was_lent_is_not_kept(self) -> None:
        """Views and arrays are valid until the call returns: what stands in them later changes nothing."""
        kept, spoiled = self._drafts_of_all(), self._drafts_of_all(spoils=True)
        check_same(kept, spoiled, "drafts change when a view is overwritten after its call; copy what is kept")

    def _drafts_of_all(self, spoils: bool = False) -> list[list[Draft]]:
        with self.engine() as llm:
            spy = spy_on(llm, spoils=spoils)
            run(llm, [Ask(tokens=tokens, max_tokens=24) for tokens in prompts()])
            return [drafts for _, drafts in sorted(spy.drafts.items())]

    # -- what is emitted -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
    def test_tokens_are_the_targets(self, temperature: float) -> None:
        """With the proposer the same tokens come as without one, in exact numerics."""
        asks = [Ask(tokens=tokens, temperature=temperature, max_tokens=32) for tokens in prompts()]
        self._check_tokens(asks)

    @pytest.mark.parametrize("setting", range(len(_ODD_SETTINGS)))
    def test_tokens_are_the_targets_in_odd_engines(self, setting: int) -> None:
        """So in small steps, with few blocks, one request at a time, without a prefix cache."""
        asks = [Ask(tokens=tokens, max_tokens=20, seed=index) for index, tokens in enumerate(prompts())]
        self._check_tokens(asks, **_ODD_SETTINGS[setting])

    def test_prefix_hits_start_drafting(self) -> None:
        """Requests that begin with cached blocks, whole ones and parts of one, emit what they would without."""
        head = random_tokens(6, 32)
        asks = [Ask(tokens=head + random_tokens(7, 3))]
        asks += [Ask(tokens=head[:length] + random_tokens(length, 2), seed=length) for length in (32, 31, 25, 16, 8)]
        asks += [asks[0]]
        expected = self._expected(asks)
        with self.engine() as llm:
            emitted = [run(llm, [ask])[0] for ask in asks]
        check_tokens(emitted, expected)

    def test_context_limit(self) -> None:
        """Drafts stop where the longest sequence ends, whatever room a request begins with."""
        asks = [
            Ask(tokens=random_tokens(room, MAX_MODEL_LEN - room), max_tokens=room, seed=room) for room in range(1, 9)
        ]
        asks += [Ask(tokens=([5, 6, 7] * MAX_MODEL_LEN)[: MAX_MODEL_LEN - 6], max_tokens=6, temperature=0.0)]
        self._check_tokens(asks)

    def _check_tokens(self, asks: Sequence[Ask], **settings: Any) -> None:
        with self.engine(**settings) as llm:
            emitted = run(llm, asks)
        check_tokens(emitted, self._expected(asks))

    def _expected(self, asks: Sequence[Ask]) -> list[list[int]]:
        with self.plain() as llm:
            return run(llm, asks)

    # -- whom it serves ------------------------------------------------------------------------------------------

    def test_mates_of_other_domains_change_nothing(self) -> None:
        """Requests of other trust domains in the batch neither change tokens nor drafts."""
        own = Ask(tokens=REPETITIVE, max_tokens=24, trust_domain="own")
        mates = [replace(own, trust_domain=f"other{index}", seed=index + 20) for index in range(3)]
        alone, among = self._drafts_of(own, []), self._drafts_of(own, mates)
        check_same(alone, among, "a request drafts otherwise beside others of other trust domains")

    def test_trust_domains_are_kept_apart(self) -> None:
        """What was learnt from a request serves its trust domain alone: elsewhere the same prompt drafts as if new."""
        own = Ask(tokens=REPETITIVE, max_tokens=24, trust_domain="own")
        fresh = self._drafts_of(own, [])
        with self.engine() as llm:
            run(llm, [replace(own, trust_domain="other", seed=seed) for seed in (own.seed, 1, 2)])
            spy = spy_on(llm)
            add(llm, "own", own)
            finish(llm)
        check_same(fresh, spy.drafts["own"], "drafts show what a request of another trust domain was about")

    def test_an_id_comes_again(self) -> None:
        """After a request was aborted, another one under its id drafts as if new; so it does after an end."""
        own = Ask(tokens=REPETITIVE, max_tokens=12, trust_domain="own")
        fresh = self._drafts_of(own, [])
        with self.engine() as llm:
            for num_steps in range(NUM_STEPS):
                add(llm, "own", Ask(tokens=random_tokens(num_steps, 30), trust_domain=f"before{num_steps}"))
                step(llm, num_steps)
                llm.engine.abort("own")
                spy = spy_on(llm)
                add(llm, "own", replace(own, trust_domain=f"own{num_steps}"))
                finish(llm)
                check_same(fresh, spy.drafts["own"], f'state of an earlier request "own", aborted at step {num_steps}')

    def _drafts_of(self, own: Ask, mates: Sequence[Ask]) -> list[Draft]:
        with self.engine() as llm:
            spy = spy_on(llm)
            for index, mate in enumerate(mates):
                add(llm, f"mate{index}", mate)
            add(llm, "own", own)
            finish(llm)
            return spy.drafts["own"]

    # -- how requests end ----------------------------------------------------------------------------------------

    def test_aborts_at_every_step(self) -> None:
        """Whenever a request is aborted, its mates emit what they would, and every block comes back."""
        asks = [Ask(tokens=tokens, max_tokens=14, seed=index) for index, tokens in enumerate(prompts()[:3])]
        expected = self._expected(asks)
        with self.engine(max_num_batched_tokens=16) as llm:
            for num_steps in range(NUM_STEPS):
                for index, ask in enumerate(asks):
                    add(llm, f"{num_steps}-{index}", ask)
                early = step(llm, num_steps)
                llm.engine.abort(f"{num_steps}-1")
                emitted = early | finish(llm)
                rest = [emitted[f"{num_steps}-{index}"] for index in (0, 2)]
                check_tokens(rest, [expected[0], expected[2]])

    def test_preemption_at_every_step(self) -> None:
        """Whenever a request is displaced and comes back, it emits what it would have."""
        low, high = Ask(tokens=prompts()[2], max_tokens=20, priority=1), Ask(tokens=prompts()[3], max_tokens=3)
        expected = self._expected([low, high])
        with self.engine(max_num_seqs=1, max_num_batched_tokens=12) as llm:
            for num_steps in range(1, NUM_STEPS):
                add(llm, f"low{num_steps}", low)
                early = step(llm, num_steps)
                add(llm, f"high{num_steps}", high)
                emitted = early | finish(llm)
                check_tokens([emitted[f"low{num_steps}"], emitted[f"high{num_steps}"]], expected)
            assert llm.engine.stats.num_preemptions, "nothing was preempted; the test is void"

    def test_release_of_unknown_ids(self) -> None:
        """``release`` takes ids that it never saw, and repeats."""
        asks = [Ask(tokens=REPETITIVE)]
        with self.engine() as llm:
            spy = spy_on(llm)
            run(llm, asks)
            for reason in ReleaseReason:
                spy.own.release(("r0", "never seen"), reason)
                spy.own.release((), reason)
            emitted = run(llm, asks)
        check_tokens(emitted, self._expected(asks))

    def test_memory_does_not_grow(self) -> None:
        """500 requests that end leave nothing behind."""
        asks = [Ask(tokens=random_tokens(seed, 8) * 2, max_tokens=4, seed=seed) for seed in range(10)]
        count = iter(range(10**6))
        with self.engine(enable_prefix_caching=False) as llm:

            def work() -> None:
                for ask in asks:
                    add(llm, f"request-{next(count):06}", ask)
                finish(llm)

            check_memory(spy_on(llm).own, work, rounds=25, requests_per_round=len(asks))

    @should
    def test_close_leaves_no_thread(self) -> None:
        """After ``close`` no thread of the plugin's runs on."""
        before = set(threading.enumerate())
        with self.engine() as llm:
            run(llm, [Ask(tokens=REPETITIVE)])
        left = set(threading.enumerate()) - before
        assert not left, f"threads run on after close: {', '.join(thread.name for thread in left)}"
