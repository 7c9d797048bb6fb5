from __future__ import annotations

import json

import pytest

from paceline.engine.metrics import RequestMetrics


@pytest.fixture
def metrics() -> RequestMetrics:
    return RequestMetrics(arrival_time_s=10.0)


def test_nothing_is_known_before_it_happened(metrics: RequestMetrics) -> None:
    assert metrics.queue_time_s is metrics.ttft_s is metrics.tpot_s is metrics.mean_acceptance_length is None
    assert metrics.acceptance_by_position == []


def test_times_are_relative_to_the_arrival(metrics: RequestMetrics) -> None:
    metrics.first_scheduled_time_s, metrics.first_token_time_s, metrics.finished_time_s = 11.0, 13.0, 19.0
    metrics.num_generated_tokens = 4
    assert (metrics.queue_time_s, metrics.ttft_s, metrics.tpot_s) == (1.0, 3.0, 2.0)
    metrics.num_generated_tokens = 1
    assert metrics.tpot_s is None


def test_acceptance_by_position_is_over_the_steps_that_drafted(metrics: RequestMetrics) -> None:
    for drafted, accepted in ((3, 2), (1, 0), (4, 4), (2, 1)):
        metrics.record_drafts(drafted, accepted)
    assert (metrics.num_drafts, metrics.num_draft_tokens, metrics.num_accepted_tokens) == (4, 10, 7)
    assert metrics.accepted_per_position.tolist() == [3, 2, 1, 1]
    assert metrics.acceptance_by_position == [0.75, 0.5, 0.25, 0.25]
    assert metrics.mean_acceptance_length == 1 + 7 / 4


def test_all_figures_as_plain_values(metrics: RequestMetrics) -> None:
    metrics.record_drafts(2, 1)
    figures = json.loads(json.dumps(metrics.as_dict()))
    assert figures["accepted_per_position"] == [1, 0]
    assert figures["acceptance_by_position"] == [1.0, 0.0]
    assert figures["mean_acceptance_length"] == 2.0 and figures["ttft_s"] is None and figures["arrival_time_s"] == 10.0
