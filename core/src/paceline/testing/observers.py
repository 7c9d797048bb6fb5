"""What an observer is held to: it changes nothing, copes with every event, and keeps no request."""

from __future__ import annotations

from typing import Any

from paceline.api import Observer, ObserverCapabilities
from paceline.engine.llm import LLM
from paceline.testing.contract import Contract, should
from paceline.testing.engines import Ask, add, finish, prompts, random_tokens, run
from paceline.testing.memory import check_memory

__all__ = ["ObserverContract"]


class ObserverContract(Contract):
    """Tests of an observer."""

    kind = "observer"

    def choice(self) -> dict[str, Any]:
        """The configuration's fields."""
        return {"observers": [{"name": self.plugin, "options": dict(self.options)}]}

    def test_tokens_are_the_same(self) -> None:
        """Watched or not, requests emit the same."""
        asks = [Ask(tokens=tokens) for tokens in prompts()]
        with self.plain() as llm:
            expected = run(llm, asks)
        with self.engine() as llm:
            assert run(llm, asks) == expected, "other tokens are emitted with the observer than without it"

    def test_requests_that_are_aborted(self) -> None:
        """Requests that end before, in and after their first step are taken."""
        with self.engine(max_num_batched_tokens=16) as llm:
            for num_steps in range(6):
                for index, tokens in enumerate(prompts()[:3]):
                    add(llm, f"r{index}", Ask(tokens=tokens))
                for _ in range(num_steps):
                    llm.engine.step()
                llm.engine.abort("r1")
                finish(llm)

    def test_requests_that_are_preempted(self) -> None:
        """Requests that are displaced and come back are taken."""
        with self.engine(max_num_seqs=1) as llm:
            add(llm, "low", Ask(tokens=random_tokens(1, 20), priority=1))
            llm.engine.step()
            add(llm, "high", Ask(tokens=random_tokens(2, 20)))
            finish(llm)
            assert llm.engine.stats.num_preemptions, "nothing was preempted; the test is void"

    def test_blocks_that_are_evicted_and_cleared(self) -> None:
        """Blocks that are stored, evicted, and forgotten all at once are taken."""
        with self.engine(num_gpu_blocks_override=14, max_num_seqs=2) as llm:
            run(llm, [Ask(tokens=random_tokens(seed, 30)) for seed in range(6)])
            llm.reset_prefix_cache()
            run(llm, [Ask(tokens=random_tokens(0, 30))])

    def test_engines_that_do_nothing(self) -> None:
        """An engine that closes before its first step, or with live requests, closes the observer without a fault."""
        with self.engine():
            pass
        with self.engine() as llm:
            add(llm, "r", Ask(tokens=random_tokens(1, 9)))
            llm.engine.step()

    def test_two_engines_at_once(self) -> None:
        """Two engines of one process have an observer each."""
        asks = [Ask(tokens=tokens) for tokens in prompts()]
        with self.engine() as first, self.engine() as second:
            own = (_observer(first), _observer(second))
            assert own[0] is not own[1], "build returned one object to two engines"
            assert run(first, asks) == run(second, asks)

    @should
    def test_wants_what_it_takes(self) -> None:
        """It asks for the kinds of events that it has a method for, and no others: each costs time to make."""
        with self.engine() as llm:
            own = _observer(llm)
        with self.plain() as llm:
            wants: ObserverCapabilities = self.load().describe(llm.built.facts)
        for kind, method in (("steps", "on_step"), ("requests", "on_requests"), ("kv", "on_kv")):
            takes = getattr(type(own), method) is not getattr(Observer, method)
            assert takes == getattr(wants, kind), f"{method} is {'' if takes else 'not '}defined, {kind} says otherwise"

    def test_memory_does_not_grow(self) -> None:
        """500 requests that end leave nothing behind."""
        asks = [Ask(tokens=random_tokens(seed, 10), max_tokens=3) for seed in range(10)]
        count = iter(range(10**6))
        with self.engine() as llm:

            def work() -> None:
                for ask in asks:
                    add(llm, f"request-{next(count):06}", ask)
                finish(llm)

            check_memory(_observer(llm), work, rounds=25, requests_per_round=len(asks))


def _observer(llm: LLM) -> Observer:
    return llm.engine._events._watchers[0].observer
