"""Constraints through the engine: a mask at every row, drafts cut where it forbids them, each row asked for once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.api import (
    ConstrainedRequest,
    Constraint,
    ConstraintBatch,
    ConstraintCapabilities,
    ConstraintError,
    PacelineError,
    ReleaseReason,
)
from paceline.engine.errors import RequestError
from paceline.host.errors import PluginCallError

STOP = 0
WORDS = ConstraintCapabilities(structured_outputs=frozenset({"choice"}))


class Words(Constraint):
    """The output is one of the sequences asked for, then an end token."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.asked_for: Counter[tuple[str, tuple[int, ...], tuple[int, ...]]] = Counter()
        self.released: list[tuple[tuple[str, ...], ReleaseReason]] = []
        self.num_closed = 0

    def check(self, request: ConstrainedRequest) -> None:
        if [] in self._words(request):
            raise ConstraintError("a word is empty; give at least one token")

    def masks(self, batch: ConstraintBatch) -> np.ndarray:
        allowed = np.zeros((len(batch.row_request), self.vocab_size), dtype=bool)
        for row, (index, drafted) in enumerate(zip(batch.row_request, batch.drafted, strict=True)):
            request = batch.requests[index]
            known = (tuple(request.output.tolist()), tuple(drafted[drafted >= 0].tolist()))
            self.asked_for[request.request_id, *known] += 1
            allowed[row, self._next(request, [*known[0], *known[1]])] = True
        return np.packbits(allowed, axis=1, bitorder="little")

    def _next(self, request: ConstrainedRequest, known: list[int]) -> list[int]:
        words = self._words(request)
        ends = list(request.end_token_ids) if known in words else []
        return ends + [word[len(known)] for word in words if word[: len(known)] == known and len(word) > len(known)]

    def _words(self, request: ConstrainedRequest) -> list[list[int]]:
        given = request.asked["choice"] if isinstance(request.asked, dict) else request.asked
        return [[int(token) for token in word] for word in given]

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        self.released.append((request_ids, reason))

    def close(self) -> None:
        self.num_closed += 1


CHOICE = ["357", "359", "3577", "8"]
WORDS_OF_CHOICE = [[3, 5, 7], [3, 5, 9], [3, 5, 7, 7], [8]]


@pytest.fixture
def words(fake: Any) -> Words:
    return Words(fake.VOCAB_SIZE)


@pytest.fixture
def constrained(harness: Callable[..., Any], words: Words) -> Callable[..., Any]:
    def build(**options: Any) -> Any:
        return harness(constraints=[(words, WORDS)], eos_token_ids=(STOP,), **options)

    return build


def test_the_output_is_what_the_constraint_allows(constrained: Callable[..., Any], words: Words) -> None:
    engine = constrained()
    for seed in range(12):
        engine.add([seed], temperature=1.5, seed=seed, structured_outputs={"choice": CHOICE})
    outputs = [output.outputs[0] for output in engine.run().values()]
    assert {completion.finish_reason for completion in outputs} == {"stop"}
    emitted = {tuple(completion.token_ids) for completion in outputs}
    assert emitted == {(*word, STOP) for word in WORDS_OF_CHOICE}
    assert set(words.asked_for.values()) == {1}


def forbidden_inside(request: Any, budget: int) -> list[int]:
    """A chain that leaves the words at its third token, or behind an end token."""
    return [*WORDS_OF_CHOICE[0], STOP, 4][len(request.tokens) - request.num_prompt_tokens :][:budget]


def branching(request: Any, budget: int) -> tuple[list[int], list[int]]:
    """From the root: 3 with 5 below it, below that 7, 9 and a token that is in no word, which has a child; and 1."""
    if len(request.tokens) > request.num_prompt_tokens + 1:
        return [], []
    return [5, 1, 11, 7, 9, 7, 7], [-1, -1, 0, 0, 0, 2, 3]


@pytest.mark.parametrize("draft", [forbidden_inside, branching])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_drafts_change_nothing_and_are_cut_where_they_are_forbidden(
    constrained: Callable[..., Any], words: Words, draft: Callable[..., Any], temperature: float
) -> None:
    shape = {"shape": "tree"} if draft is branching else {}
    plain, drafting = constrained(), constrained(draft=draft, num_speculative_tokens=7, **shape)
    for engine in (plain, drafting):
        for seed in range(6):
            engine.add([seed], temperature=temperature, seed=seed, structured_outputs={"choice": CHOICE})
        engine.run()
    assert {r: plain.tokens(r) for r in plain.outputs} == {r: drafting.tokens(r) for r in drafting.outputs}
    assert drafting.engine.stats.num_accepted_tokens > 0
    assert max(words.asked_for.values()) == 2  # once by each engine


def test_every_verified_draft_was_allowed(harness: Callable[..., Any], fake: Any, words: Words) -> None:
    """The end token and what follows it: only the first can be right."""
    engine = harness(
        constraints=[(words, WORDS)], eos_token_ids=(STOP,), draft=forbidden_inside, num_speculative_tokens=5
    )
    engine.add([1], logit_bias={8: -50.0, 9: -50.0}, structured_outputs={"choice": ["357", "8"]})
    [output] = engine.run().values()
    assert output.outputs[0].token_ids == [3, 5, 7, STOP]
    assert output.metrics.num_draft_tokens == output.metrics.num_accepted_tokens == 3


def test_constraints_survive_a_preemption_and_are_released(constrained: Callable[..., Any], words: Words) -> None:
    long = [[token for token in range(1, 14)], [token for token in range(13, 0, -1)]]
    given = {"constraints": {"constraint_0": long}, "temperature": 1.0, "max_tokens": 20}
    roomy, tight = constrained(), constrained(num_blocks=8)
    for engine in (roomy, tight):
        for seed in range(3):
            engine.add([seed], seed=seed, **given)
        engine.run()
    assert tight.engine.stats.num_preemptions > 0
    assert {r: roomy.tokens(r) for r in roomy.outputs} == {r: tight.tokens(r) for r in tight.outputs}
    assert {reason for _, reason in words.released} == {ReleaseReason.PREEMPTED, ReleaseReason.FINISHED}
    tight.add([1], "gone", **given)
    tight.engine.abort("gone")
    assert words.released[-1] == (("gone",), ReleaseReason.ABORTED)
    tight.engine.close()
    assert words.num_closed == 1


def test_a_table_row_serves_one_request_after_another(constrained: Callable[..., Any], fake: Any) -> None:
    engine = constrained(max_num_seqs=1)
    engine.add([1], structured_outputs={"choice": CHOICE})
    engine.add([2], "free", max_tokens=5, ignore_eos=True)
    engine.run()
    assert engine.tokens("free") == fake.continuation([2], 5)


def test_samples_are_constrained_alike(constrained: Callable[..., Any]) -> None:
    engine = constrained()
    engine.add([1], n=8, temperature=2.0, seed=1, structured_outputs={"choice": CHOICE})
    [output] = engine.run().values()
    assert len({tuple(own.token_ids) for own in output.outputs}) > 1
    assert all(own.token_ids[:-1] in WORDS_OF_CHOICE for own in output.outputs)


def test_several_constraints_must_all_agree(harness: Callable[..., Any], fake: Any, words: Words) -> None:
    other = Words(fake.VOCAB_SIZE), ConstraintCapabilities()
    engine = harness(constraints=[(words, WORDS), other], eos_token_ids=(STOP,))
    both = {"structured_outputs": {"choice": ["357", "8"]}, "constraints": {"constraint_1": [[3, 5, 9], [8], [4]]}}
    for seed in range(8):
        engine.add([1], seed=seed, temperature=2.0, **both)
    ended = [output for output in engine.run().values() if output.outputs[0].finish_reason == "stop"]
    assert {tuple(output.outputs[0].token_ids) for output in ended} == {(8, STOP)}


def test_a_request_without_a_token_left_ends_alone(constrained: Callable[..., Any], fake: Any) -> None:
    engine = constrained()
    engine.add([1], "stuck", structured_outputs={"choice": ["8"]}, min_tokens=5, max_tokens=9)
    engine.add([2], "free", max_tokens=5, ignore_eos=True)
    outputs = engine.run()
    assert outputs["stuck"].outputs[0].finish_reason == "error"
    assert "min_tokens and constraints leave a token to choose" in outputs["stuck"].error
    assert engine.tokens("free") == fake.continuation([2], 5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"structured_outputs": {"regex": "a"}},
            'asks for structured_outputs of kind "regex", which no constraint of the engine enforces '
            '(loaded: constraint_0); build the engine with one that does, such as constraints=["llguidance"]',
        ),
        (
            {"constraints": {"nobody": 1}},
            'asks for constraint "nobody", which the engine was not built with (loaded: constraint_0); name it in',
        ),
        (
            {"structured_outputs": {"choice": ["8"]}, "ignore_eos": True},
            "structured_outputs end with an end token, and the request has none (ignore_eos, or a model without one)",
        ),
        (
            {"constraints": {"constraint_0": [[8]]}, "structured_outputs": {"choice": ["8"]}},
            'asks constraint "constraint_0" both by its name and by structured_outputs; ask it once',
        ),
        ({"constraints": {"constraint_0": [[]]}}, "check: a word is empty; give at least one token"),
    ],
)
def test_what_cannot_be_enforced_is_refused(
    constrained: Callable[..., Any], given: dict[str, Any], message: str
) -> None:
    engine = constrained()
    with pytest.raises(PacelineError) as caught:
        engine.add([1], "r", **given)
    assert message in str(caught.value)
    assert isinstance(caught.value, RequestError | ConstraintError)
    assert not engine.engine.has_requests


def test_an_error_that_names_a_request_ends_it_alone(harness: Callable[..., Any], fake: Any) -> None:
    class GivesUp(Words):
        def masks(self, batch: ConstraintBatch) -> np.ndarray:
            for request in batch.requests:
                if request.request_id == "bad" and len(request.output) == 2:
                    raise ConstraintError("too deep; ask for less", request.request_id)
            return super().masks(batch)

    engine = harness(constraints=[(GivesUp(fake.VOCAB_SIZE), WORDS)], eos_token_ids=(STOP,))
    for name in ("good", "bad", "other"):
        engine.add([1], name, structured_outputs={"choice": ["35789"]})
    outputs = engine.run()
    assert outputs["bad"].error.startswith("PACELINE-E503: ")
    assert outputs["bad"].error.endswith(", masks: too deep; ask for less")
    assert outputs["bad"].outputs[0].token_ids == [3, 5]
    assert engine.tokens("good") == engine.tokens("other") == [3, 5, 7, 8, 9, STOP]


@pytest.mark.parametrize("answer", [np.zeros((1, 1), dtype=np.uint8), np.zeros((1, 3), dtype=bool), [[True] * 20]])
def test_masks_of_another_form_are_refused(harness: Callable[..., Any], fake: Any, answer: Any) -> None:
    class Wrong(Words):
        def masks(self, batch: ConstraintBatch) -> Any:
            return answer

    engine = harness(constraints=[(Wrong(fake.VOCAB_SIZE), WORDS)], eos_token_ids=(STOP,))
    engine.add([1], structured_outputs={"choice": ["8"]})
    with pytest.raises(PluginCallError, match=r"masks returned .*, not uint8 \[1, 2\]: one bit for each id"):
        engine.run()


def test_requests_without_constraints_pay_nothing(constrained: Callable[..., Any], words: Words) -> None:
    engine = constrained(draft=lambda request, budget: [1, 2][:budget])
    engine.add([1, 2], max_tokens=6, ignore_eos=True)
    engine.run()
    assert not words.asked_for
    assert not engine.engine._table.reads_drafts(np.arange(4))
