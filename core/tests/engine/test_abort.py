from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.api import ReleaseReason


def test_unknown_ids_and_repeats_are_fine(harness: Callable[..., Any]) -> None:
    engine = harness()
    assert engine.abort("nobody") is None
    request_id = engine.add([1])
    assert engine.abort(request_id) is not None
    assert engine.abort(request_id) is None
    assert engine.engine.stats.num_aborted == 1


def test_several_at_once(harness: Callable[..., Any]) -> None:
    engine = harness(draft=lambda request, budget: [])
    first, second, third = (engine.add([1]) for _ in range(3))
    engine.step()
    outputs = engine.engine.abort_all([first, "nobody", third, first])
    assert [output.request_id for output in outputs] == [first, third] and engine.engine.stats.num_aborted == 2
    assert engine.proposer.released == [((first, third), ReleaseReason.ABORTED)]
    assert [*engine.run()] == [second]


@pytest.mark.parametrize(
    ("num_steps", "num_emitted"), [(0, 0), (1, 0), (3, 1), (5, 3)], ids=["waiting", "mid-prefill", "first", "decoding"]
)
def test_at_any_point_it_ends_with_what_it_has(
    harness: Callable[..., Any], fake: Any, num_steps: int, num_emitted: int
) -> None:
    engine = harness(max_num_batched_tokens=4, draft=lambda request, budget: [])
    engine.add([1] * 12, "gone", max_tokens=9)
    engine.add([1] * 12, "stays", max_tokens=3)
    for _ in range(num_steps):
        engine.step()
    output = engine.abort("gone")
    assert output.finished and output.outputs[0].finish_reason == "abort"
    assert output.outputs[0].token_ids == fake.continuation([1] * 12, num_emitted)
    assert output.metrics.finished_time_s is not None
    engine.run()
    assert engine.tokens("stays") == fake.continuation([1] * 12, 3)
    assert engine.kv.num_used == 0
    assert [pair for pair in engine.proposer.released if "gone" in pair[0]] == [(("gone",), ReleaseReason.ABORTED)]


def test_while_preempted(harness: Callable[..., Any], fake: Any) -> None:
    engine = harness(num_blocks=5, block_size=4, max_num_seqs=2)
    engine.add([1] * 5, "a", max_tokens=8)
    engine.add([2] * 5, "b", max_tokens=8)
    while not engine.engine.stats.num_preemptions:
        engine.step()
    emitted = engine.engine.output("b").outputs[0].token_ids
    assert engine.abort("b").outputs[0].token_ids == emitted == fake.continuation([2] * 5, len(emitted))
    engine.run()
    assert engine.tokens("a") == fake.continuation([1] * 5, 8) and engine.kv.num_used == 0


def test_a_live_request_can_be_looked_at(harness: Callable[..., Any], fake: Any) -> None:
    engine = harness()
    engine.add([1, 2], "r", max_tokens=5)
    engine.step()
    output = engine.engine.output("r")
    assert not output.finished and output.outputs[0].finish_reason is None
    assert output.outputs[0].token_ids == fake.continuation([1, 2], 1)
    with pytest.raises(KeyError):
        engine.engine.output("nobody")


def test_closing_aborts_what_is_live_and_closes_the_proposer_once(harness: Callable[..., Any]) -> None:
    engine = harness(draft=lambda request, budget: [])
    engine.add([1], "a")
    engine.step()
    engine.add([1], "b")
    engine.engine.close()
    engine.engine.close()
    assert engine.kv.num_used == 0 and not engine.engine.has_requests
    assert engine.proposer.released == [(("a", "b"), ReleaseReason.ABORTED)]
    assert engine.proposer.num_closed == 1
