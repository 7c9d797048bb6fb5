from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.tree_layout import node_depths, node_paths


@st.composite
def forests(draw: st.DrawFn) -> list[list[int]]:
    rows = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    return [[draw(st.integers(-1, node - 1)) for node in range(length)] for length in rows]


def path_of(parents: list[int], node: int) -> list[int]:
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


@given(forests())
def test_depths_and_paths_are_those_of_a_walk_to_the_root(rows: list[list[int]]) -> None:
    width = max(map(len, rows))
    parents = np.array([row + [-1] * (width - len(row)) for row in rows], dtype=np.int64).reshape(len(rows), width)
    lengths = np.array([len(row) for row in rows])

    depths = node_depths(parents, lengths)
    paths = node_paths(parents, depths)

    for row, own in enumerate(rows):
        for node in range(len(own)):
            wanted = path_of(own, node)
            assert depths[row, node] == len(wanted) - 1
            assert paths[row, node].tolist() == wanted + [-1] * (paths.shape[2] - len(wanted))


def test_a_padded_node_is_not_taken_for_a_child_of_the_last() -> None:
    parents = np.array([[-1, 0, 1], [-1, -1, -1]])
    assert node_depths(parents, np.array([2, 1])).tolist() == [[0, 1, 0], [0, 0, 0]]
