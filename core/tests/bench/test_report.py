"""Statistics and rows from records made by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.bench.plan import Cell
from paceline.bench.records import Measurement, RequestRecord, Run, merged, timed
from paceline.bench.report import ALL_KINDS, RatioBases, Row, measurement_fields, report_rows, with_totals
from paceline.bench.stats import Spread, paired_ratios, spread, spread_of_known

BASES = RatioBases("hf", "plain", batch=1)


def row_of(rows: list[Row], engine: str, kind: str = "chat", batch: int = 1) -> Row:
    (row,) = [row for row in rows if (row.engine, row.kind, row.batch) == (engine, kind, batch)]
    return row


def test_spread() -> None:
    assert spread([9.0, 1.0, 2.0]) == Spread(2.0, 1.0, 9.0)
    assert spread([1.0, 2.0]) == Spread(1.5, 1.0, 2.0)
    assert spread_of_known([None, 4.0]) == Spread(4.0, 4.0, 4.0)
    assert spread_of_known([None]) is None


def test_ratios_are_paired_by_round() -> None:
    assert paired_ratios({0: 2.0, 1: 9.0, 2: 5.0}, {0: 1.0, 1: 3.0}) == [2.0, 3.0]


def test_a_run_counts_tokens_and_takes_medians_over_requests() -> None:
    run = Run(2.0, [RequestRecord([1], 0.1, None), RequestRecord([1, 2, 3], 0.3, 0.2), RequestRecord([4], 0.2, None)])
    assert (run.num_tokens, run.tokens_per_s, run.ttft_s, run.tpot_s) == (5, 2.5, 0.2, 0.2)
    assert Run(1.0, [RequestRecord([1], 0.1, None)]).tpot_s is None
    assert Run(2.0, [RequestRecord([1], 0.1, None, text_num_tokens=6)]).tokens_per_s == 3.0


def test_a_request_is_timed_by_its_own_last_token() -> None:
    assert timed([7, 8, 9], [0.5, 0.75, 1.5, 9.0]) == RequestRecord([7, 8, 9], 0.5, 0.5)
    assert timed([7], [0.5]) == RequestRecord([7], 0.5, None)


def test_merged_runs_add_up() -> None:
    runs = [Run(1.0, [RequestRecord([i], 0.1, None)], 1, 2, 3, 4, 5.0, 6.0) for i in range(2)]
    assert merged([*runs, Run(1.0)]).num_passes is None
    assert merged(runs) == Run(2.0, [*runs[0].requests, *runs[1].requests], 2, 4, 6, 8, 10.0, 12.0)


def test_ratios_of_a_row(record: Callable[..., Measurement]) -> None:
    """The machine is half as fast in round 1; paired ratios do not notice."""
    speeds = {("hf", 1): 1.0, ("plain", 1): 2.0, ("ngram", 1): 3.0, ("hf", 4): 2.0, ("plain", 4): 8.0}
    measurements = [
        record(engine, round_index, (1 + round_index) / speed, [[1, 2]], batch=batch)
        for round_index in (0, 1)
        for (engine, batch), speed in speeds.items()
    ]
    rows = report_rows(measurements, BASES, {})
    assert row_of(rows, "ngram").tokens_per_s == Spread(4.5, 3.0, 6.0)
    assert row_of(rows, "ngram").ratio_to_transformers == Spread(3.0, 3.0, 3.0)
    assert row_of(rows, "ngram").ratio_to_no_speculation == Spread(1.5, 1.5, 1.5)
    assert row_of(rows, "plain", batch=4).ratio_to_transformers == Spread(4.0, 4.0, 4.0)
    assert row_of(rows, "plain", batch=4).ratio_to_transformers_smallest_batch == Spread(8.0, 8.0, 8.0)


def test_an_engine_without_a_base_has_no_ratio(record: Callable[..., Measurement]) -> None:
    (row,) = report_rows([record("ngram", 0, 1.0, [[1]])], BASES, {})
    assert (row.ratio_to_transformers, row.ratio_to_no_speculation, row.tpot_s) == (None, None, None)


def test_acceptance_is_over_all_rounds(record: Callable[..., Measurement]) -> None:
    counts = [{"num_drafts": 2, "num_accepted_tokens": 6, "num_passes": 4}, {"num_drafts": 2, "num_passes": 6}]
    measurements = [record("ngram", index, 1.0, [[1, 2, 3], [4, 5]], **fields) for index, fields in enumerate(counts)]
    (row,) = report_rows(measurements, BASES, {})
    assert row.acceptance_length == pytest.approx(1 + 6 / 4)
    assert row.tokens_per_pass == 1.0
    assert row.num_output_tokens == Spread(2.5, 2, 3)
    assert report_rows([record("plain", 0, 1.0, [[1]])], BASES, {})[0].acceptance_length is None


def test_what_an_engine_does_not_tell_is_not_made_up(record: Callable[..., Measurement]) -> None:
    measurement = record("server", 0, 2.0, [[1], [2]])
    measurement.run.num_passes = None
    for request in measurement.run.requests:
        request.text_num_tokens = 5
    (row,) = report_rows([measurement], BASES, {})
    assert (row.tokens_per_pass, row.acceptance_length, row.tpot_s) == (None, None, None)
    assert (row.tokens_per_s.median, row.num_output_tokens.median) == (5.0, 5)
    assert measurement_fields(measurement)["num_passes"] is None


def test_totals_add_the_kinds_of_each_round(record: Callable[..., Measurement]) -> None:
    measurements = [
        record("hf", 0, 1.0, [[1, 2]], kind="chat"),
        record("hf", 0, 3.0, [[1, 2]], kind="code"),
    ]
    counts = {("hf", Cell("chat", 1)): (1, 1), ("hf", Cell("code", 1)): (0, 1)}
    row = row_of(report_rows(with_totals(measurements), BASES, {"plain": counts}), "hf", ALL_KINDS)
    assert row.tokens_per_s.median == 1.0
    assert row.agreement == {"plain": (1, 2)}


def test_one_kind_has_no_totals(record: Callable[..., Measurement]) -> None:
    measurements = [record("hf", 0, 1.0, [[1]])]
    assert with_totals(measurements) == measurements


def test_a_measurement_for_json_has_no_tokens(record: Callable[..., Measurement]) -> None:
    fields = measurement_fields(record("hf", 2, 4.0, [[1, 2]], batch=4))
    assert (fields["round"], fields["engine"], fields["kind"], fields["batch"]) == (2, "hf", "chat", 4)
    assert (fields["seconds"], fields["num_tokens"], fields["ttft_s"], fields["tpot_s"]) == (4.0, 2, 0.5, 0.25)
    assert "requests" not in fields
