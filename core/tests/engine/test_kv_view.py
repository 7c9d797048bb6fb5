"""A proposer's own KV on the engine's blocks: the draft-state rules (a) to (c), and what oversteps them is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, SamplingParams
from paceline.api import Drafts, PacelineError
from paceline.engine.errors import EngineError
from paceline.host.errors import PluginCallError

PROMPT = list(range(40, 60))
LENGTH = len(PROMPT)


@pytest.fixture
def paged(tiny: Callable[..., str], test_plugins: Any) -> Iterator[tuple[LLM, Any]]:
    """An engine whose proposer has the target's weights on blocks of its own, and the proposer."""
    with LLM(tiny(), max_model_len=64, block_size=8, proposer="engine_probes:paged", num_speculative_tokens=4) as llm:
        yield llm, test_plugins.built[-1]


@pytest.fixture(scope="module")
def plain_logits(tiny: Callable[..., str]) -> Callable[[list[int]], torch.Tensor]:
    """Last logits of transformers' own forward."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny())

    def logits(tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.tensor([tokens]), use_cache=False).logits[0, -1]

    return logits


def generate(llm: LLM, prompt: list[int] = PROMPT, max_tokens: int = 3, **extra: Any) -> Any:
    [output] = llm.generate(
        {"prompt_token_ids": prompt, **extra}, SamplingParams(temperature=0.0, max_tokens=max_tokens)
    )
    return output


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


class Script:
    """What one test does in each call of ``propose``, in turn; nothing afterwards."""

    def __init__(self, *calls: Callable[[Any, Any], Drafts | None]) -> None:
        self.calls = list(calls)

    def __call__(self, batch: Any) -> Drafts:
        answer = self.calls.pop(0)(batch, batch.kv["paged"]) if self.calls else None
        return answer or Drafts.empty(len(batch.requests))


def feed(paged: Any, batch: Any, view: Any, start: int, stop: int, first: int | None = None) -> torch.Tensor:
    tokens = batch.requests[0].tokens[start:stop]
    logits = paged.model.forward(view, tokens, array(start), array(stop - start))
    view.report(array(stop), None if first is None else array(first))
    return logits


def test_entries_lie_in_the_slots_of_their_tokens(paged: tuple[LLM, Any], plain_logits: Any) -> None:
    llm, proposer = paged

    def whole(batch: Any, view: Any) -> None:
        assert (view.first.tolist(), view.computed.tolist()) == ([0], [0])
        logits = feed(proposer, batch, view, 0, LENGTH)
        assert torch.allclose(logits[0], plain_logits(PROMPT), atol=1e-4)
        slots = llm.engine.kv.slots(np.repeat(view.table_rows, LENGTH), np.arange(LENGTH))
        for own, target in zip(proposer.model._runner._layers, llm.engine._committer._layers, strict=True):
            for mine, its in zip(own, target, strict=True):
                assert torch.allclose(mine.flatten(0, 1)[slots], its.flatten(0, 1)[slots], atol=1e-5)

    proposer.on_propose = script = Script(whole)
    generate(llm)
    assert not script.calls


def test_a_late_start_reads_nothing_before_it(paged: tuple[LLM, Any], plain_logits: Any) -> None:
    llm, proposer = paged
    for k, v in proposer.model._runner._layers:
        k.fill_(1e3), v.fill_(1e3)

    def late(batch: Any, view: Any) -> None:
        logits = feed(proposer, batch, view, 7, LENGTH - 2, first=7)
        assert torch.allclose(logits[0], plain_logits(PROMPT[7 : LENGTH - 2]), atol=1e-3)
        logits = feed(proposer, batch, view, LENGTH - 2, LENGTH)
        assert torch.allclose(logits[0], plain_logits(PROMPT[7:]), atol=1e-3)
        assert (view.first.tolist(), view.computed.tolist()) == ([7], [LENGTH])

    proposer.on_propose = script = Script(late)
    generate(llm)
    assert not script.calls


def test_slots_of_the_targets_tokens_cannot_be_asked_for(paged: tuple[LLM, Any]) -> None:
    llm, proposer = paged
    proposer.on_propose = Script(lambda batch, view: view.reserve(array(8)))
    words = r'KV group "paged" lies in the slots of the target.s tokens, .*private=True to reserve slots of its own'
    with pytest.raises(PacelineError, match=words):
        generate(llm)


def test_what_is_there_already_is_not_written_again(paged: tuple[LLM, Any]) -> None:
    llm, proposer = paged

    def twice(batch: Any, view: Any) -> None:
        feed(proposer, batch, view, 0, LENGTH)
        layers = proposer.model._runner._layers
        for k, v in layers:
            k.mul_(1.5), v.mul_(1.5)
        before = [(k.clone(), v.clone()) for k, v in layers]
        feed(proposer, batch, view, LENGTH - 3, LENGTH)
        assert all(
            torch.equal(a, b) for pair, old in zip(layers, before, strict=True) for a, b in zip(pair, old, strict=True)
        )

    proposer.on_propose = script = Script(twice)
    generate(llm)
    assert not script.calls


def test_rejected_drafts_are_taken_back_and_followed_ones_stay(paged: tuple[LLM, Any]) -> None:
    llm, proposer = paged
    truth = PROMPT + generate(llm, max_tokens=9).outputs[0].token_ids
    computed = []

    def drafted(batch: Any, view: Any) -> Drafts:
        known = batch.requests[0].tokens.tolist()
        drafts = [*truth[len(known) :][:2], (truth[len(known) + 2] + 1) % 512]
        start = int(view.computed[0])
        computed.append((start, len(known)))
        tokens = np.array((known + drafts)[start:])
        proposer.model.forward(view, tokens, array(start), array(len(tokens)))
        view.report(array(start + len(tokens)))
        return Drafts.from_lists([drafts])

    proposer.on_propose = Script(drafted, drafted)
    llm.engine.kv.reset()
    assert generate(llm, max_tokens=9).outputs[0].token_ids == truth[LENGTH:]
    # Two of three drafts were followed: their entries stay; that of the wrong one and all after it are gone.
    assert computed == [(0, LENGTH + 1), (LENGTH + 3, LENGTH + 4)]


@pytest.mark.parametrize(("first", "hit"), [(0, 16), (3, 0)], ids=["whole", "late"])
def test_only_a_whole_component_is_published(paged: tuple[LLM, Any], first: int, hit: int) -> None:
    """The target's hit is 16 tokens; the draft's is as long as its range covers them from 0 on."""
    llm, proposer = paged
    found = []

    def fill(batch: Any, view: Any) -> None:
        feed(proposer, batch, view, first, LENGTH, first)

    proposer.on_propose = Script(fill)
    generate(llm)
    proposer.on_propose = Script(lambda batch, view: found.append(int(view.computed[0])))
    assert generate(llm).num_cached_tokens == 16
    assert found == [hit]


def test_a_shorter_component_than_the_targets(paged: tuple[LLM, Any]) -> None:
    llm, proposer = paged
    found = []

    def fill(batch: Any, view: Any) -> None:
        feed(proposer, batch, view, 0, 11)

    proposer.on_propose = Script(fill)
    generate(llm)
    proposer.on_propose = Script(lambda batch, view: found.append(int(view.computed[0])))
    assert generate(llm).num_cached_tokens == 16
    assert found == [8]


def test_the_reserved_slots_hold_the_drafts(paged: tuple[LLM, Any]) -> None:
    llm, proposer = paged
    seen = []
    proposer.on_propose = Script(lambda batch, view: seen.append((int(view.capacity[0]), int(batch.budgets[0]))))
    generate(llm, max_tokens=9)
    assert seen == [(32, 4)], "21 known tokens and 4 drafts in blocks of 8"


def test_no_rows_give_no_logits(paged: tuple[LLM, Any]) -> None:
    llm, proposer = paged
    shapes = []

    def nothing(batch: Any, view: Any) -> None:
        shapes.append(tuple(proposer.model.forward(view, array(), array(0), array(0)).shape))

    proposer.on_propose = Script(nothing)
    generate(llm)
    assert shapes == [(0, 512)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda p, b, v: (feed(p, b, v, 0, 4), feed(p, b, v, 6, 8)),
            r'KV group "paged": request "1" was to run at positions \[6, 8\); they must begin in its valid range '
            r"\[0, 4\] and end by 24, the slots reserved",
        ),
        (lambda p, b, v: (feed(p, b, v, 4, 8, 4), feed(p, b, v, 2, 5)), r"positions \[2, 5\).* range \[4, 8\]"),
        (lambda p, b, v: p.model.forward(v, array(1, 1), array(23), array(2)), r"positions \[23, 25\).* end by 24"),
        (lambda p, b, v: p.model.forward(v, array(1), array(-1), array(1)), r"positions \[-1, 0\)"),
        (lambda p, b, v: v.report(array(25)), r'request "1" was reported as \[0, 25\), beyond its 24 reserved slots'),
        (lambda p, b, v: (v.report(array(4)), v.report(array(9), array(6))), "does not continue the present"),
    ],
    ids=["gap", "before the range", "no slots", "negative", "report without slots", "report with a gap"],
)
def test_overstepping_is_refused(paged: tuple[LLM, Any], wrong: Any, message: str) -> None:
    llm, proposer = paged
    clean = generate(llm).outputs[0].token_ids
    llm.engine.kv.reset()
    proposer.on_propose = lambda batch: wrong(proposer, batch, batch.kv["paged"])
    with pytest.raises(PacelineError, match=message) as error:
        generate(llm)
    assert "probes" in str(error.value) and "propose" in str(error.value)
    proposer.on_propose = Script()
    assert generate(llm).outputs[0].token_ids == clean and llm.engine.kv.num_used == 0


def test_what_does_not_fit_the_group_is_refused(paged: tuple[LLM, Any], tiny: Callable[..., str]) -> None:
    _, proposer = paged
    with pytest.raises(EngineError, match=r'KV group "other" was not described; put it into ProposerCapabilities'):
        proposer.context.load_model("target", "other")
    with pytest.raises(EngineError, match=r'KV group "paged" was described as .*num_layers=2.*needs .*num_layers=1'):
        proposer.context.load_model(tiny(num_hidden_layers=1), "paged")


def test_embeddings_and_logits_of_the_target(paged: tuple[LLM, Any], tiny: Callable[..., str]) -> None:
    from transformers import AutoModelForCausalLM

    _, proposer = paged
    model = AutoModelForCausalLM.from_pretrained(tiny())
    ids = torch.tensor([3, 511])
    with torch.inference_mode():
        hidden = model.get_input_embeddings()(ids)
        assert torch.equal(proposer.context.embed(ids), hidden)
        assert torch.allclose(proposer.context.logits(hidden), model.lm_head(hidden), atol=1e-5)


def test_a_plugin_error_of_another_kind_is_named_too(paged: tuple[LLM, Any]) -> None:
    llm, proposer = paged
    proposer.on_propose = lambda batch: 1 / 0
    with pytest.raises(PluginCallError, match=r"probes.* 0.3.*propose raised ZeroDivisionError: division by zero"):
        generate(llm)
