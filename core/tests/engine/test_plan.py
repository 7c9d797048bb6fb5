from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.api import RequestFacts
from paceline.engine.plan import DraftRows, build_plan
from paceline.engine.request import Request
from paceline.sampling.params import SamplingParams

MakeRequest = Callable[[list[int], int], Request]


@pytest.fixture
def request_at() -> MakeRequest:
    """``(tokens, num_computed) -> Request``."""

    def make(tokens: list[int], num_computed: int) -> Request:
        request = Request(
            facts=RequestFacts(request_id="r", num_prompt_tokens=len(tokens)),
            prompt=None,
            prompt_token_ids=np.array(tokens),
            params=SamplingParams(),
            seed=0,
            stop_ids=frozenset(),
            max_num_tokens=len(tokens) + 8,
            draft_limit=None,
            arrival_time_s=0.0,
        )
        request.num_computed = num_computed
        return request

    return make


def rows(tokens: list[list[int]], parents: list[list[int]] | None = None) -> DraftRows:
    array = np.array(tokens)
    lengths = (array >= 0).sum(axis=1)
    return DraftRows(array, lengths, None if parents is None else np.array(parents))


def test_decodes_come_first_then_chunks_and_only_those_caught_up_emit(request_at: MakeRequest) -> None:
    decoding = [request_at([1, 2, 3], 2), request_at([4], 0)]
    chunks = [request_at([5, 6, 7, 8], 1), request_at([9, 9, 9], 0)]

    plan = build_plan(decoding, rows([[10, 11], [12, -1]]), chunks, [3, 2])

    assert plan.tokens.tolist() == [3, 10, 11, 4, 12, 6, 7, 8, 9, 9]
    assert plan.row_seq.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert plan.positions.tolist() == [2, 3, 4, 0, 1, 1, 2, 3, 0, 1]
    assert plan.slot_positions.tolist() == plan.positions.tolist()
    assert plan.visible.tolist() == [3, 4, 5, 1, 2, 2, 3, 4, 1, 2]
    assert plan.query_starts.tolist() == [0, 3, 5, 8, 10] and plan.num_rows == 10
    assert plan.paths is None
    assert plan.emitters.tolist() == [0, 1, 2] and plan.emitting == [*decoding, chunks[0]]
    assert plan.choice_counts.tolist() == [3, 2, 1]
    assert plan.choice_rows.tolist() == [0, 1, 2, 3, 4, 7]


def test_only_chunks(request_at: MakeRequest) -> None:
    plan = build_plan([], DraftRows.none(0), [request_at([5, 6, 7], 0)], [2])
    assert plan.tokens.tolist() == [5, 6] and plan.num_decoding == 0
    assert not len(plan.emitters) and not len(plan.choice_rows)


def test_tree_rows_see_the_committed_tokens_and_their_own_path(request_at: MakeRequest) -> None:
    decoding = [request_at([1, 2, 3], 2), request_at([4, 5], 1), request_at([6], 0)]
    # of the first: 0 and 1 below the root, 2 below 1, 3 below 2; of the second: a single node; the third drafts nothing
    tree = rows([[10, 11, 12, 13], [14, -1, -1, -1], [-1] * 4], [[-1, -1, 1, 2], [-1, -1, -1, -1], [-1] * 4])

    plan = build_plan(decoding, tree, [request_at([7, 8, 9], 0)], [3])

    assert plan.slot_positions.tolist() == [2, 3, 4, 5, 6, 1, 2, 0, 0, 1, 2]
    assert plan.positions.tolist() == [2, 3, 3, 4, 5, 1, 2, 0, 0, 1, 2]
    assert plan.visible.tolist() == [3, 3, 3, 3, 3, 2, 2, 1, 1, 2, 3]
    assert plan.paths is not None
    none = [-1, -1, -1]
    assert plan.paths.tolist() == [
        *(none, [3, -1, -1], [4, -1, -1], [4, 5, -1], [4, 5, 6]),
        *(none, [2, -1, -1]),
        none,
        *(none, none, none),
    ]


def test_a_tree_without_nodes_is_no_tree(request_at: MakeRequest) -> None:
    empty = DraftRows(np.empty((1, 0), np.int64), np.zeros(1, np.int64), np.empty((1, 0), np.int64))
    assert build_plan([request_at([1], 0)], empty, [], []).paths is None


def test_trimming_cuts_tokens_and_parents_alike() -> None:
    tree = rows([[1, 2, 3], [4, 5, -1]], [[-1, 0, 1], [-1, -1, -1]]).trimmed(np.array([2, 1]))
    assert tree.tokens.tolist() == [[1, 2], [4, -1]] and tree.lengths.tolist() == [2, 1]
    assert tree.parents is not None and tree.parents.tolist() == [[-1, 0], [-1, -1]]


def test_nodes_that_are_kept_move_together_and_take_their_parents_along() -> None:
    keep = np.array([[True, False, True, True, True, True], [True, True, True, True, True, False]])
    tree = rows([[1, 2, 3, 4, 5, 6], [7, 8, 9, -1, -1, -1]], [[-1, -1, 0, 1, 2, 4], [-1, 0, 1, -1, -1, -1]]).kept(keep)
    assert tree.tokens.tolist() == [[1, 3, 5, 6], [7, 8, 9, -1]] and tree.lengths.tolist() == [4, 3]
    assert tree.parents is not None and tree.parents.tolist() == [[-1, 0, 1, 2], [-1, 0, 1, -1]]


def test_a_chain_is_kept_up_to_its_first_gap() -> None:
    keep = np.array([[True, True, False], [False, True, True], [True, True, True]])
    chain = rows([[1, 2, 3], [4, 5, 6], [7, -1, -1]]).kept(keep)
    assert chain.tokens.tolist() == [[1, 2], [-1, -1], [7, -1]] and chain.lengths.tolist() == [2, 0, 1]


def test_the_view_of_tokens_cannot_be_written(request_at: MakeRequest) -> None:
    view = request_at([1, 2], 0).view()
    with pytest.raises(ValueError, match="read-only"):
        view.tokens[0] = 5


def test_a_request_never_passes_its_limit(request_at: MakeRequest, fake: SimpleNamespace) -> None:
    request = request_at([1], 0)
    request.append(np.arange(8))
    assert (request.room, request.num_output_tokens) == (0, 8)
    with pytest.raises(AssertionError, match="past the limit"):
        request.append(np.array([1]))
