"""Failures of priorities: who must wait although they are urgent, and who takes turns for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline import LLM, RequestOutput, SamplingParams
from paceline.engine.errors import RequestError
from paceline.engine.prompts import parse_prompt

PROPOSERS: dict[str, dict[str, Any]] = {
    "none": {},
    "draft_model": {"proposer": "draft_model", "proposer_options": {"model": "target"}, "num_speculative_tokens": 4},
}
NUM_TOKENS = 24


@pytest.fixture(params=PROPOSERS)
def proposer(request: pytest.FixtureRequest) -> dict[str, Any]:
    return PROPOSERS[request.param]


def random_prompts(seed: int, *lengths: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 512, length).tolist() for length in lengths]


class Run:
    """Requests of one engine, step by step: when each gave its first token and ended."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.num_steps = 0
        self.first: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.outputs: dict[str, RequestOutput] = {}

    def add(self, tokens: list[int], num_tokens: int = NUM_TOKENS, **fields: Any) -> str:
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens)
        return self.llm.add_request(parse_prompt({"prompt_token_ids": tokens, **fields}), params)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            result = self.llm.engine.step()
            self.num_steps += 1
            for request_id in result.new_tokens:
                self.first.setdefault(request_id, self.num_steps)
            for output in result.finished:
                self.outputs[output.request_id] = output
                self.ended[output.request_id] = self.num_steps

    def finish(self) -> None:
        while self.llm.engine.has_requests:
            self.step()
            assert self.num_steps < 2000

    def tokens(self, *request_ids: str) -> list[list[int]]:
        return [self.outputs[request_id].outputs[0].token_ids for request_id in request_ids]

    def num_preemptions(self, *request_ids: str) -> list[int]:
        return [self.outputs[request_id].metrics.num_preemptions for request_id in request_ids]


@pytest.fixture
def start(
    tiny: Callable[..., str], engines: Callable[..., LLM], settled: Callable[[LLM], None], proposer: dict[str, Any]
) -> Callable[..., Run]:
    return lambda **options: Run(engines(tiny(), block_size=4, **proposer, **options))


def test_an_urgent_request_displaces_one_when_slots_are_the_bound(
    tiny: Callable[..., str], start: Callable[..., Run], greedy: Callable[..., list[list[int]]], settled: Any
) -> None:
    """B041: two slots, two long requests, an urgent one; later one more of the long ones' priority."""
    run = start(max_num_seqs=2)
    prompts = random_prompts(1, 20, 21, 22, 23)
    low = [run.add(prompt, priority=5) for prompt in prompts[:2]]
    run.step(3)
    urgent = run.add(prompts[2], num_tokens=6, priority=-1)
    later = run.add(prompts[3], priority=5)
    arrived = run.num_steps
    run.finish()
    settled(run.llm)
    assert run.first[urgent] - arrived < 5
    assert run.ended[urgent] < min(run.ended[request_id] for request_id in (*low, later))
    assert run.num_preemptions(*low, urgent, later) == [0, 1, 0, 0], "the last of the low ones, once"
    assert run.first[later] > run.ended[urgent], "the displaced one comes back before later equals"
    assert run.ended[low[1]] <= run.ended[later]
    wanted = greedy(tiny(), prompts, NUM_TOKENS)
    assert run.tokens(*low, later) == [wanted[0], wanted[1], wanted[3]]
    assert run.tokens(urgent) == [wanted[2][:6]]


@pytest.mark.parametrize("priority", [0, 7])
def test_equal_priorities_never_displace_each_other(start: Callable[..., Run], settled: Any, priority: int) -> None:
    """B041: three more behind two that run, all equal: they come one after the other, in order."""
    run = start(max_num_seqs=2)
    ids = [run.add(prompt, 8, priority=priority) for prompt in random_prompts(2, 9, 9, 9, 9, 9)]
    run.finish()
    settled(run.llm)
    assert run.num_preemptions(*ids) == [0] * 5
    assert [run.first[request_id] for request_id in ids] == sorted(run.first[request_id] for request_id in ids)


def test_a_less_urgent_request_waits(start: Callable[..., Run]) -> None:
    run = start(max_num_seqs=1)
    first, low, second, third = (
        run.add(prompt, 8, priority=priority)
        for prompt, priority in zip(random_prompts(3, 9, 9, 9, 9), (0, 1, 0, 0), strict=True)
    )
    run.finish()
    assert run.first[second] < run.first[third] < run.first[low]
    assert run.num_preemptions(first, low, second, third) == [0] * 4


def test_an_urgent_request_displaces_as_many_as_memory_needs(
    tiny: Callable[..., str], start: Callable[..., Run], greedy: Callable[..., list[list[int]]], settled: Any
) -> None:
    """B041, with blocks as the bound: 20 blocks, three that hold most of them, and one that needs two of theirs."""
    run = start(max_num_seqs=8, num_gpu_blocks_override=20)
    prompts = random_prompts(4, 20, 20, 20, 36)
    low = [run.add(prompt, 8, priority=1) for prompt in prompts[:3]]
    run.step()
    urgent = run.add(prompts[3], 8)
    arrived = run.num_steps
    run.step()
    assert [run.llm.engine.output(request_id).metrics.num_preemptions for request_id in low] == [0, 1, 1]
    run.finish()
    settled(run.llm)
    assert run.first[urgent] - arrived < 5
    assert run.num_preemptions(urgent) == [0]
    assert run.tokens(*low, urgent) == greedy(tiny(), prompts, 8)


def test_nobody_is_displaced_in_vain(start: Callable[..., Run]) -> None:
    """What equals hold is too much: ending the lower one would not let the waiting one in."""
    run = start(max_num_seqs=8, num_gpu_blocks_override=20)
    equal = run.add(random_prompts(5, 40)[0], 16)
    low = run.add(random_prompts(6, 8)[0], 16, priority=1)
    run.step()
    waiting = run.add(random_prompts(7, 48)[0], 8)
    run.step(2)
    assert run.llm.engine.output(low).metrics.num_preemptions == 0
    run.finish()
    assert run.num_preemptions(equal) == [0]
    assert run.first[waiting] > run.ended[equal]


def test_the_prompt_of_an_urgent_request_goes_before_a_long_one_that_runs(start: Callable[..., Run]) -> None:
    """The bound is the rows of a step: a prompt of 160 tokens at 8 a step would keep everybody waiting."""
    run = start(max_num_seqs=4, max_num_batched_tokens=8)
    long = run.add(random_prompts(8, 160)[0], 4, priority=1)
    run.step(2)
    urgent = run.add(random_prompts(9, 12)[0], 4)
    run.step(4)
    assert urgent in run.first
    run.finish()
    assert run.ended[urgent] < run.first[long]
    assert run.num_preemptions(long) == [0], "there is room for both"


def test_priorities_in_a_small_pool_all_end(
    tiny: Callable[..., str], start: Callable[..., Run], greedy: Callable[..., list[list[int]]], settled: Any
) -> None:
    """B038 and B041: more than the pool holds, urgent ones among them at all times; nobody is preempted for ever."""
    run = start(max_num_seqs=4, num_gpu_blocks_override=24, max_num_batched_tokens=16)
    prompts = random_prompts(10, *[20] * 8)
    ids = []
    for index, prompt in enumerate(prompts):
        ids.append(run.add(prompt, NUM_TOKENS, priority=-index % 3))
        run.step(2)
    run.finish()
    settled(run.llm)
    assert run.tokens(*ids) == greedy(tiny(), prompts, NUM_TOKENS)
    assert 0 < max(run.num_preemptions(*ids)) <= 10


@pytest.mark.parametrize("value", ["high", 1.5, True, [1]])
def test_what_is_no_priority_is_refused(value: Any) -> None:
    """B041: a field that is offered is never ignored."""
    with pytest.raises(RequestError) as error:
        parse_prompt({"prompt": "x", "priority": value}, 3)
    message = f'PACELINE-E110: prompt 3: "priority" is {value!r}; give an integer (the lower, the sooner served)'
    assert str(error.value) == message
