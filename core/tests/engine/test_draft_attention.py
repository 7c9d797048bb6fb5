"""Attention of a proposer's own layers: what a row sees, what is written, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.api import Drafts, PluginError

PROMPT = list(range(40, 60))
LENGTH = len(PROMPT)
HEADS, KV_HEADS, SIZE = 4, 2, 16


@pytest.fixture
def paged(tiny: Callable[..., str], test_plugins: Any) -> Iterator[tuple[LLM, Any]]:
    with LLM(tiny(), max_model_len=64, block_size=8, proposer="engine_probes:paged", num_speculative_tokens=4) as llm:
        yield llm, test_plugins.built[-1]


def once(paged: tuple[LLM, Any], check: Callable[[Any, Any, Any], None]) -> None:
    """Generate, with ``check(context, batch, view)`` in the first call of ``propose``."""
    llm, proposer = paged
    calls = [check]

    def propose(batch: Any) -> Drafts:
        if calls:
            calls.pop()(proposer.context, batch, batch.kv["paged"])
        return Drafts.empty(len(batch.requests))

    proposer.on_propose = propose
    llm.generate({"prompt_token_ids": PROMPT}, SamplingParams(temperature=0.0, max_tokens=3), use_tqdm=False)
    assert not calls


def array(values: Any) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def drawn(num_rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    shapes = ((num_rows, heads, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS))
    query, key, value = (torch.randn(*shape, generator=random) for shape in shapes)
    return query, key, value


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: list[int]) -> torch.Tensor:
    """One row's attention over the entries it sees: ``[heads, size]``."""
    k, v = (entries[seen].repeat_interleave(HEADS // KV_HEADS, dim=1) for entries in (key, value))
    weights = torch.einsum("hs,khs->hk", query, k).div(SIZE**0.5).softmax(-1)
    return torch.einsum("hk,khs->hs", weights, v)


def test_a_chain_sees_what_stands_before_it(paged: tuple[LLM, Any]) -> None:
    def check(context: Any, batch: Any, view: Any) -> None:
        query, key, value = drawn(LENGTH + 2)
        out = []
        for part in (slice(0, 9), slice(9, LENGTH + 2)):
            slots = np.arange(LENGTH + 2)[part]
            attend = context.attention(view, row_request=np.zeros_like(slots), slots=slots)
            out.append(attend(1, query[part], key[part], value[part]))
        for row, own in enumerate(torch.cat(out)):
            assert torch.allclose(own, plain(query[row], key, value, list(range(row + 1))), atol=1e-5)

    once(paged, check)


def test_slots_before_the_first_are_never_read(paged: tuple[LLM, Any]) -> None:
    def check(context: Any, batch: Any, view: Any) -> None:
        query, key, value = drawn(LENGTH)
        slots = np.arange(1, LENGTH)
        attend = context.attention(view, row_request=np.zeros_like(slots), slots=slots, first=1)
        out = attend(0, query[1:], key[1:], value[1:])
        for row, own in enumerate(out, start=1):
            assert torch.allclose(own, plain(query[row], key, value, list(range(1, row + 1))), atol=1e-5)
        view.report(array([LENGTH]))
        assert (view.first.tolist(), view.computed.tolist()) == ([0], [LENGTH])

    once(paged, check)


def test_nodes_of_a_tree_see_their_own_path(paged: tuple[LLM, Any]) -> None:
    """Root slots 0 to 19; nodes in slots 20, 21 (children), 22 (below 20) and 23 (below 21)."""

    def check(context: Any, batch: Any, view: Any) -> None:
        query, key, value = drawn(LENGTH + 4)
        slots = np.arange(LENGTH)
        attend = context.attention(view, row_request=np.zeros_like(slots), slots=slots)
        attend(0, query[:LENGTH], key[:LENGTH], value[:LENGTH])
        view.report(array([LENGTH]))
        paths = {LENGTH: [[LENGTH, -1], [LENGTH + 1, -1]], LENGTH + 2: [[20, 22], [21, 23]]}
        for start, own_paths in paths.items():
            slots = array([start, start + 1])
            attend = context.attention(
                view, row_request=array([0, 0]), slots=slots, visible=array([LENGTH] * 2), paths=array(own_paths)
            )
            out = attend(0, query[slots], key[slots], value[slots])
            for slot, path, own in zip(slots, own_paths, out, strict=True):
                seen = [*range(LENGTH), *(node for node in path if node >= 0)]
                assert torch.allclose(own, plain(query[slot], key, value, seen), atol=1e-5)

    once(paged, check)


def test_what_is_valid_already_is_not_written_again(paged: tuple[LLM, Any]) -> None:
    def check(context: Any, batch: Any, view: Any) -> None:
        query, key, value = drawn(LENGTH)
        slots = np.arange(LENGTH)
        context.attention(view, row_request=np.zeros_like(slots), slots=slots)(0, query, key, value)
        view.report(array([LENGTH]))
        other = drawn(4, seed=1)
        attend = context.attention(view, row_request=array([0] * 4), slots=slots[-4:])
        out = attend(0, query[-4:], *other[1:])
        assert torch.allclose(out[-1], plain(query[-1], key, value, list(range(LENGTH))), atol=1e-5)

    once(paged, check)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            {"slots": [1]},
            "was to write slot 1 and read up to slot 1; entries are there in [0, 0), new ones must follow",
        ),
        ({"slots": [0, 2]}, "was to write slot 0 and read up to slot 0; entries are there in [0, 0)"),
        ({"slots": [0], "visible": [9]}, "was to write slot 0 and read up to slot 8"),
        ({"slots": [0, 1], "visible": [1, 1], "paths": [[0, -1], [0, 5]]}, "was to write slot 1 and read up to slot 5"),
        ({"slots": list(range(40))}, "follow without a gap and end by"),
        ({"slots": [0], "first": 1}, "was to write slot 0 and read up to slot 0; entries are there in [1, 1)"),
    ],
)
def test_rows_that_read_what_nobody_wrote_are_refused(
    paged: tuple[LLM, Any], rows: dict[str, Any], message: str
) -> None:
    def check(context: Any, batch: Any, view: Any) -> None:
        given = {name: value if name == "first" else array(value) for name, value in rows.items()}
        with pytest.raises(PluginError) as caught:
            context.attention(view, row_request=np.zeros(len(rows["slots"]), dtype=np.int64), **given)
        assert message in str(caught.value)

    once(paged, check)


def test_the_checkpoint_gives_tensors_by_name(paged: tuple[LLM, Any]) -> None:
    tensors = paged[1].context.open_checkpoint()
    assert "model.layers.1.self_attn.q_proj.weight" in tensors
    assert tensors["model.embed_tokens.weight"].shape == (512, 64)
    with pytest.raises(KeyError):
        tensors["model.layers.2.self_attn.q_proj.weight"]
