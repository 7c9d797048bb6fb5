"""Several samples of one prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.engine.errors import RequestError
from paceline.sampling.noise import derive_seed

HOT = {"temperature": 1e4, "seed": 5, "max_tokens": 6}
PROMPT = list(range(12))


def test_each_sample_is_what_its_seed_gives_alone(harness: Callable[..., Any]) -> None:
    engine = harness()
    engine.add(PROMPT, "r", n=3, **HOT)
    [output] = engine.run().values()
    alone = harness()
    for index in range(3):
        alone.add(PROMPT, str(index), **HOT | {"seed": derive_seed(5, index)})
    alone.run()
    assert output.request_id == "r"
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert [completion.token_ids for completion in output.outputs] == [alone.tokens(str(index)) for index in range(3)]
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 3
    assert output.prompt_token_ids == PROMPT
    assert output.finished


def test_unseeded_samples_derive_from_one_drawn_seed(harness: Callable[..., Any]) -> None:
    engine, alone = harness(seed=9), harness()
    engine.add([1], temperature=1e4)
    engine.add([1], "r", n=2, temperature=1e4)
    alone.add([1], "r", temperature=1e4, n=2, seed=derive_seed(9, 1))
    sampled, expected = engine.run()["r"], alone.run()["r"]
    assert [c.token_ids for c in sampled.outputs] == [c.token_ids for c in expected.outputs]


def test_the_prompt_is_computed_once(harness: Callable[..., Any]) -> None:
    """Its full blocks are; the others begin when the first has emitted."""
    engine = harness(max_num_seqs=8)
    engine.add([*PROMPT, 3, 1], "r", n=4, **HOT)
    engine.run()
    assert len(engine.runner.passes[0]) == 14
    assert len(engine.runner.passes[1]) <= 1 + 3 * (14 - 12)
    assert engine.outputs["r"].num_cached_tokens == 0


def test_figures_are_those_of_all_samples(harness: Callable[..., Any], fake: Any) -> None:
    engine = harness(draft=fake.right_drafts)
    engine.add(PROMPT, "r", n=2, temperature=0.0, max_tokens=9)
    metrics = engine.run()["r"].metrics
    assert metrics.num_generated_tokens == 18
    assert metrics.num_accepted_tokens == metrics.num_draft_tokens > 8
    assert int(metrics.accepted_per_position.sum()) == metrics.num_accepted_tokens
    assert metrics.arrival_time_s < metrics.first_scheduled_time_s < metrics.first_token_time_s
    assert metrics.first_token_time_s < metrics.finished_time_s


def test_samples_end_at_their_own_time_and_are_handed_out_together(harness: Callable[..., Any]) -> None:
    engine = harness(eos_token_ids=(2, 3, 5))
    engine.add([1], "r", n=6, **HOT | {"max_tokens": 30})
    lengths: set[int] = set()
    while engine.engine.has_requests:
        live = engine.engine.output("r")
        lengths.add(sum(completion.finish_reason is not None for completion in live.outputs))
        assert not live.finished
        engine.step()
    assert len(lengths) > 1
    assert [c.finish_reason for c in engine.outputs["r"].outputs] == ["stop"] * 6
    assert engine.kv.num_used == 0


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_an_abort_ends_all_of_them(harness: Callable[..., Any], num_steps: int) -> None:
    engine = harness()
    engine.add(PROMPT, "r", n=3, **HOT)
    for _ in range(num_steps):
        engine.step()
    output = engine.abort("r")
    assert output.finished
    assert [completion.finish_reason for completion in output.outputs] == ["abort"] * 3
    assert not engine.engine.has_requests
    assert engine.kv.num_used == 0
    engine.outputs.clear()
    engine.add(PROMPT, "r", n=2, **HOT)
    assert len(engine.run()["r"].outputs) == 2


def test_the_end_of_any_sample_frees_those_that_wait(harness: Callable[..., Any]) -> None:
    for first in ("r-0", "r-2"):
        engine = harness()
        engine.add(PROMPT, "r", n=3, **HOT)
        assert engine.engine.abort(first) is None
        outputs = engine.run()["r"].outputs
        assert sorted(c.finish_reason for c in outputs) == ["abort", "length", "length"]


def test_samples_survive_preemption(harness: Callable[..., Any]) -> None:
    roomy, tight = harness(), harness(num_blocks=9)
    for engine in (roomy, tight):
        engine.add(PROMPT, "r", n=3, **HOT | {"max_tokens": 14})
        engine.run()
    assert tight.engine.stats.num_preemptions > 0
    assert [c.token_ids for c in tight.outputs["r"].outputs] == [c.token_ids for c in roomy.outputs["r"].outputs]


def test_ids_of_samples_are_taken(harness: Callable[..., Any]) -> None:
    engine = harness()
    engine.add([1], "r", n=2)
    for taken in ("r", "r-1"):
        with pytest.raises(RequestError, match=f'"{taken}" is in use'):
            engine.add([1], taken)
    engine.add([1], "s-1")
    with pytest.raises(RequestError, match='request "s": its sample id "s-1" is in use; choose another id'):
        engine.add([1], "s", n=2)
    with pytest.raises(KeyError):
        engine.engine.output("nobody")
