"""Order of the turns, whole batches, and running them."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.plan import Cell, Turn, cells, chunks, filled, turns
from paceline.bench.records import RequestRecord, Run
from paceline.bench.rounds import WARM_UP_TOKENS, Schedule, measure, num_turns, warm_up


class Recorder:
    """An engine that notes what it is asked for and emits the prompt."""

    def __init__(self, name: str, log: list[tuple[str, int, int]], max_batch: int | None = None) -> None:
        self.name = name
        self.max_batch = max_batch
        self._log = log

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Run:
        self._log.append((self.name, len(prompts), max_tokens))
        return Run(1.0, [RequestRecord(list(prompt), 0.1, None) for prompt in prompts], num_passes=1)


def test_engines_alternate_within_each_cell_and_rounds_repeat_the_whole() -> None:
    chat, code = Cell("chat", 1), Cell("code", 1)
    order = list(turns(2, [chat, code], {"A": None, "B": None}))
    once = [("A", chat), ("B", chat), ("A", code), ("B", code)]
    assert order == [Turn(round_index, cell, engine) for round_index in (0, 1) for engine, cell in once]


def test_an_engine_has_no_turn_beyond_its_most_requests() -> None:
    order = turns(1, [Cell("chat", 1), Cell("chat", 4)], {"A": 1, "B": None})
    assert [(turn.engine, turn.cell.batch) for turn in order] == [("A", 1), ("B", 1), ("B", 4)]


def test_cells_are_every_kind_at_every_batch() -> None:
    assert cells(["a", "b"], [1, 4]) == [Cell("a", 1), Cell("b", 1), Cell("a", 4), Cell("b", 4)]


def test_batches_are_whole() -> None:
    assert filled([1, 2, 3], 1) == [1, 2, 3]
    assert filled([1, 2, 3], 2) == [1, 2, 3, 1]
    assert filled([1, 2, 3], 8) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert [list(chunk) for chunk in chunks(filled([1, 2, 3], 2), 2)] == [[1, 2], [3, 1]]


def test_measured_rounds_run_everything_in_order() -> None:
    log: list[tuple[str, int, int]] = []
    engines = [Recorder("A", log), Recorder("B", log, max_batch=1)]
    groups = {"chat": [[1], [2], [3]]}
    schedule = Schedule([1, 2], max_tokens=20, num_rounds=2, num_warmup=1)
    seen: list[Turn] = []
    measurements = measure(engines, groups, schedule, seen.append)
    one_round = [("A", 1, 20)] * 3 + [("B", 1, 20)] * 3 + [("A", 2, 20)] * 2
    assert log == one_round * 2
    assert [(m.round_index, m.cell, m.engine) for m in measurements] == [
        (t.round_index, t.cell, t.engine) for t in seen
    ]
    assert [request.token_ids for request in measurements[2].run.requests] == [[1], [2], [3], [1]]
    assert measurements[2].run.seconds == 2.0
    assert num_turns(engines, groups, schedule) == 9


def test_warm_up_emits_few_tokens() -> None:
    log: list[tuple[str, int, int]] = []
    warm_up([Recorder("A", log)], {"chat": [[1]]}, Schedule([1], 100, num_rounds=5, num_warmup=2), lambda turn: None)
    assert log == [("A", 1, WARM_UP_TOKENS)] * 2
