"""Who runs when: chunks beside decodes, fairness, preemption. Tokens are checked throughout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.api import ReleaseReason


def check_all(engine: Any, fake: Any) -> None:
    for output in engine.outputs.values():
        wanted = fake.continuation(output.prompt_token_ids, len(output.outputs[0].token_ids))
        assert output.outputs[0].token_ids == wanted and output.outputs[0].finish_reason == "length"
    assert engine.kv.num_used == 0


def rows_of_passes(engine: Any) -> list[list[int]]:
    """Rows of each request in each pass, decodes first."""
    return [[int((pass_ == seq).sum()) for seq in range(pass_.max() + 1)] for pass_ in engine.runner.passes]


def test_prompts_are_computed_in_chunks_beside_decodes(harness: Callable[..., Any], fake: Any) -> None:
    engine = harness(max_num_batched_tokens=8, max_num_seqs=3)
    engine.add([1] * 4, "a", max_tokens=5)
    engine.add(list(range(15)), "b", max_tokens=1)
    engine.run()
    assert rows_of_passes(engine) == [[4, 4], [1, 7], [1, 4], [1], [1]]
    check_all(engine, fake)


def test_who_came_first_is_served_first(harness: Callable[..., Any], fake: Any) -> None:
    engine = harness(max_num_batched_tokens=4, max_num_seqs=4)
    for request_id in "abcd":
        engine.add([ord(request_id) % 16] * 6, request_id, max_tokens=2)
    engine.run()
    first_tokens = [engine.outputs[request_id].metrics.first_token_time_s for request_id in "abcd"]
    assert first_tokens == sorted(first_tokens)
    check_all(engine, fake)


def test_no_more_run_than_may(harness: Callable[..., Any], fake: Any) -> None:
    engine = harness(max_num_seqs=2)
    for index in range(5):
        engine.add([index], max_tokens=3)
    most = 0
    while engine.engine.has_requests:
        engine.step()
        most = max(most, engine.engine.num_running)
    assert most == 2
    check_all(engine, fake)


@pytest.mark.parametrize("max_num_batched_tokens", [2, 3, 12])
def test_drafts_leave_rows_for_prompts(harness: Callable[..., Any], fake: Any, max_num_batched_tokens: int) -> None:
    """However much one drafts, a prompt beside it gets half of the rows that decoding leaves, and at least one."""
    engine = harness(
        draft=lambda request, budget: [15] * budget,
        num_speculative_tokens=20,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=2,
    )
    engine.add([1], "drafting", max_tokens=40)
    engine.step()
    engine.add([2] * 30, "waiting", max_tokens=1)
    engine.run()
    share = -(-(max_num_batched_tokens - 1) // 2)
    with_both = [rows for rows in rows_of_passes(engine) if len(rows) == 2]
    assert len(with_both) <= -(-30 // share)
    assert all(rows[1] >= share for rows in with_both[:-1])
    check_all(engine, fake)


def test_drafts_take_the_rows_that_no_prompt_needs(harness: Callable[..., Any], fake: Any) -> None:
    engine = harness(draft=fake.right_drafts, num_speculative_tokens=20, max_num_batched_tokens=12, max_num_seqs=2)
    engine.add([1], "drafting", max_tokens=40)
    engine.step()
    engine.add([2, 3], "short", max_tokens=1)
    engine.step()
    assert rows_of_passes(engine)[1] == [10, 2], "two rows are needed, so the drafts get nine of eleven"


def test_draft_slots_do_not_keep_a_waiting_request_out(harness: Callable[..., Any], fake: Any) -> None:
    """The pool has room for both without drafts; drafts take what admission leaves."""
    engine = harness(
        draft=lambda request, budget: [15] * budget,
        num_speculative_tokens=16,
        num_blocks=8,
        block_size=4,
        max_num_seqs=2,
        enable_prefix_caching=False,
    )
    engine.add([1], "drafting", max_tokens=28)
    engine.step()
    engine.step()
    engine.add([2] * 15, "waiting", max_tokens=1)
    engine.step()
    assert "waiting" in engine.outputs, "the drafts of the first took the blocks that the second needed"
    engine.run()
    check_all(engine, fake)


def test_drafts_shrink_before_they_cost_anybody_a_block(harness: Callable[..., Any], fake: Any) -> None:
    plain = harness(num_blocks=6, block_size=4, max_num_seqs=2)
    drafting = harness(num_blocks=6, block_size=4, max_num_seqs=2, draft=fake.right_drafts, num_speculative_tokens=8)
    for engine in (plain, drafting):
        engine.add([1] * 5, "a", max_tokens=6)
        engine.add([2] * 5, "b", max_tokens=6)
        engine.run()
        check_all(engine, fake)
    assert plain.engine.stats.num_preemptions == drafting.engine.stats.num_preemptions == 0
    assert drafting.engine.stats.num_steps < plain.engine.stats.num_steps


def test_the_last_admitted_gives_way_and_comes_back_first(harness: Callable[..., Any], fake: Any) -> None:
    engine = harness(num_blocks=6, block_size=4, max_num_seqs=3, draft=lambda request, budget: [])
    for request_id in "abc":
        engine.add([ord(request_id) % 16] * 3, request_id, max_tokens=14)
    engine.run()
    preemptions = [engine.outputs[request_id].metrics.num_preemptions for request_id in "abc"]
    assert preemptions[0] == 0 and sum(preemptions) == engine.engine.stats.num_preemptions > 0
    finished = [engine.outputs[request_id].metrics.finished_time_s for request_id in "abc"]
    assert finished == sorted(finished)
    released = [ids for ids, reason in engine.proposer.released if reason is ReleaseReason.PREEMPTED]
    assert len(released) == engine.engine.stats.num_preemptions
    check_all(engine, fake)


def test_who_is_admitted_leaves_each_running_request_a_block_to_grow_into(
    harness: Callable[..., Any], fake: Any
) -> None:
    engine = harness(num_blocks=4, block_size=4, max_num_seqs=2)
    engine.add([1] * 5, "a", max_tokens=7)
    engine.add([2] * 8, "b", max_tokens=4)
    engine.run()
    assert engine.engine.stats.num_preemptions == 0, "the pool holds both prompts, but not what comes after them"
    check_all(engine, fake)


@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_preemptions_are_bounded(harness: Callable[..., Any], fake: Any, enable_prefix_caching: bool) -> None:
    """Requests that fight for a pool give way less often than blocks are filled."""
    engine = harness(
        num_blocks=12, block_size=2, max_num_seqs=4, enable_prefix_caching=enable_prefix_caching, max_model_len=24
    )
    for index in range(6):
        engine.add([index] * 4, max_tokens=20)
    engine.run(most_steps=6 * 24)
    assert 0 < engine.engine.stats.num_preemptions <= 6 * 24 // 2
    check_all(engine, fake)


def test_recomputation_does_not_change_what_was_counted(harness: Callable[..., Any], fake: Any) -> None:
    engine = harness(num_blocks=5, block_size=4, max_num_seqs=2)
    engine.add([1] * 5, "a", max_tokens=8)
    engine.add([2] * 5, "b", max_tokens=8)
    outputs = engine.run()
    metrics = outputs["b"].metrics
    assert metrics.num_preemptions > 0
    assert (metrics.num_generated_tokens, metrics.num_cached_tokens) == (8, 0)
    assert engine.engine.stats.num_generated_tokens == 16


def test_a_wholly_cached_prompt_recomputes_its_last_token_only(harness: Callable[..., Any], fake: Any) -> None:
    engine = harness(block_size=4)
    for request_id in ("cold", "warm"):
        engine.add([1, 2, 3, 4, 5, 6, 7, 8], request_id, max_tokens=2)
        engine.run()
    assert engine.outputs["warm"].num_cached_tokens == 7
    assert rows_of_passes(engine) == [[8], [1], [1], [1]]
    check_all(engine, fake)


def test_salts_and_trust_domains_do_not_share(harness: Callable[..., Any]) -> None:
    engine = harness()
    keys: list[dict[str, str]] = [
        {},
        {"cache_salt": "s"},
        {"trust_domain": "d"},
        {"cache_salt": "s", "trust_domain": "d"},
    ]
    cached = []
    for own in keys + keys:
        request_id = engine.add([1] * 9, max_tokens=1, **own)
        cached.append(engine.run()[request_id].num_cached_tokens)
    assert cached == [0] * 4 + [8] * 4
