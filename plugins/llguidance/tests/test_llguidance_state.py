"""Masks are a function of history alone, whatever is kept between calls; and what keeping it saves."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.api import ConstrainedRequest, Constraint, ConstraintBatch, ReleaseReason
from paceline_llguidance import walk
from paceline_llguidance.constraint import LLGuidanceConstraint

Build = Callable[..., Constraint]
Encode = Callable[[str], list[int]]
RequestFor = Callable[..., ConstrainedRequest]
BatchOf = Callable[..., ConstraintBatch]
Allowed = Callable[..., set[int]]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "items": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "items"],
    "additionalProperties": False,
}
ASKED = {
    "json": {"json": SCHEMA},
    "json_object": {"json_object": True, "whitespace_pattern": "[ \\n]{0,3}"},
    "regex": {"regex": "(hello|help|the quick)( [0-9]{1,3})*"},
    "choice": {"choice": ["hello", "hello world", "help", "the quick fox"]},
    "grammar": {"grammar": 'start: "[" item ("," item)* "]"\nitem: /[a-z]{1,4}/ | start'},
    "no rollback": {"grammar": 'start: head ";" tail\nhead[max_tokens=4]: /[a-z]*/\ntail[stop="!"]: /[0-9 ]*/'},
    "suffix": {"grammar": 'start: part part\npart[suffix="."]: /[a-z ]*/'},
}


def walked(
    constraint: Constraint, request_for: RequestFor, allowed: Allowed, asked: Any, rng: random.Random, length: int
) -> list[int]:
    """Tokens of a random walk through the masks, without its end."""
    output: list[int] = []
    for _ in range(length):
        ids = sorted(allowed(constraint, request_for(asked, output, "walker")) - {0})
        if not ids:
            break
        output.append(rng.choice(ids))
    return output


def test_a_batch_mixes_requests_of_all_kinds(
    build: Build, request_for: RequestFor, batch_of: BatchOf, allowed: Allowed
) -> None:
    constraint, rng, mixed, expected = build(), random.Random(5), [], []
    for name, asked in ASKED.items():
        output = walked(build(), request_for, allowed, asked, rng, 6)
        request = request_for(asked, output[:3], name)
        rows = [output[3:stop] for stop in range(3, len(output) + 1)]
        mixed.append((request, rows))
        expected += [allowed(build(), request, row) for row in rows]
    masks = constraint.masks(batch_of(*mixed))
    assert [set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()) for mask in masks] == expected


def bad_id(rng: random.Random, vocab_size: int) -> int:
    return rng.choice((0, 1, rng.randrange(vocab_size), rng.randrange(vocab_size)))


@pytest.mark.parametrize("name", list(ASKED))
def test_masks_are_a_function_of_history_alone(
    build: Build, request_for: RequestFor, batch_of: BatchOf, allowed: Allowed, vocab_size: int, name: str
) -> None:
    """Outputs grow, shrink and change under one id, rows come in any order: as a constraint says that saw nothing."""
    rng, asked, subject = random.Random(name), ASKED[name], build()
    paths = [walked(build(), request_for, allowed, asked, rng, 14) for _ in range(6)]
    num_open = 0
    for _ in range(40):
        path = rng.choice(paths)
        size = rng.randint(0, len(path))
        output, rest = path[:size], path[size:]
        rows = [rest[: rng.randint(0, 5)] for _ in range(3)]
        rows += [[*row, bad_id(rng, vocab_size), *rest[len(row) :][:2]] for row in rows[:2]]
        if rng.random() < 0.2:
            output = [*output, bad_id(rng, vocab_size)]
        if rng.random() < 0.1:
            subject.release(("r", "unknown"), ReleaseReason.PREEMPTED)
        masks = subject.masks(batch_of((request_for(asked, output), rows)))
        fresh = build()
        for row, mask in zip(rows, masks, strict=True):
            alone = fresh.masks(batch_of((request_for(asked, [*output, *row], str(row)), [[]])))[0]
            assert mask.tolist() == alone.tolist()
            num_open += bool(mask.any())
    assert num_open > 40


def test_one_id_may_ask_something_else(build: Build, encode: Encode, request_for: RequestFor, allowed: Allowed) -> None:
    constraint, hello = build(), encode("hello")
    assert allowed(constraint, request_for({"regex": "hello"}, hello)) == {0}
    assert allowed(constraint, request_for({"regex": "hello"}, hello, ends=(1, 2))) == {1, 2}
    assert 0 not in allowed(constraint, request_for({"regex": "hello world"}, hello))


class CountingMatcher:
    """Counts the masks that a matcher computes and the tokens that it consumes."""

    def __init__(self, matcher: Any, counts: dict[str, int]) -> None:
        self._matcher, self._counts = matcher, counts

    def deep_copy(self) -> CountingMatcher:
        return CountingMatcher(self._matcher.deep_copy(), self._counts)

    def compute_bitmask(self) -> bytes:
        self._counts["masks"] += 1
        return self._matcher.compute_bitmask()

    def consume_tokens(self, tokens: list[int]) -> bool:
        self._counts["tokens"] += len(tokens)
        return self._matcher.consume_tokens(tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    counts = {"masks": 0, "tokens": 0}
    plain = walk.GrammarWalk.__init__

    def counting(self: Any, grammar: Any, *others: Any) -> None:
        plain(self, CountingMatcher(grammar, counts), *others)

    monkeypatch.setattr(walk.GrammarWalk, "__init__", counting)
    return counts


def test_each_row_is_computed_once_and_each_token_consumed_a_bounded_number_of_times(
    build: Build, request_for: RequestFor, batch_of: BatchOf, allowed: Allowed, counts: dict[str, int]
) -> None:
    """Speculation with chains of 4: a mask per position, whether it was drafted before or not."""
    asked = ASKED["json"]
    path = walked(build(), request_for, allowed, asked, random.Random(3), 60)
    constraint, sizes = build(), itertools.cycle((1, 5, 3, 2))
    counts.update(masks=0, tokens=0)
    output: list[int] = []
    while len(output) < len(path):
        rest = path[len(output) :][:4]
        constraint.masks(batch_of((request_for(asked, output), [rest[:stop] for stop in range(len(rest) + 1)])))
        output += path[len(output) :][: next(sizes)]
    assert counts["masks"] <= 2 * len(path)
    assert counts["tokens"] <= 4 * len(path)
    constraint.release(("r",), ReleaseReason.PREEMPTED)
    counts.update(masks=0, tokens=0)
    constraint.masks(batch_of((request_for(asked, output), [[]])))
    assert counts == {"masks": len(output) + 1, "tokens": len(output)}


def test_a_long_draft_is_rolled_back(
    build: Build, encode: Encode, request_for: RequestFor, batch_of: BatchOf, allowed: Allowed, counts: dict[str, int]
) -> None:
    asked, path = {"regex": "[a-z ,0-9]*"}, encode("hello world, the quick fox 1 2 3 hello world, the quick fox")
    constraint, chain = build(), [path[2:stop] for stop in range(2, len(path) + 1)]
    masks = constraint.masks(batch_of((request_for(asked, path[:2]), chain)))
    other = sorted(allowed(constraint, request_for(asked, path[:3])) - {0})
    expected = [allowed(build(), request_for(asked, [*path[:3], token])) for token in other]
    counts.update(masks=0, tokens=0)
    assert [allowed(constraint, request_for(asked, path[:3]), [token]) for token in other] == expected
    assert 40 < counts["tokens"] <= len(other)  # nothing was begun anew
    assert (constraint.masks(batch_of((request_for(asked, path[:2]), chain))) == masks).all()


def test_a_draft_may_be_very_long(
    build: Build, encode: Encode, request_for: RequestFor, allowed: Allowed, counts: dict[str, int]
) -> None:
    constraint, drafted = build(), encode("hello world, ") * 700
    assert allowed(constraint, request_for({"regex": "[a-z ,]*"}), drafted) > {0}
    assert counts["tokens"] == len(drafted) > 2000


def test_what_cannot_be_rolled_back_is_begun_anew(
    build: Build, encode: Encode, request_for: RequestFor, batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the grammar that is there: nothing is compiled for it."""
    asked, branches = ASKED["no rollback"], [encode("the;12 3"), encode("quick;4"), encode("the;5"), encode("the;12 3")]
    constraint = build()
    constraint.check(request_for(asked))
    monkeypatch.delattr(LLGuidanceConstraint, "_compile")
    masks = constraint.masks(batch_of((request_for(asked), branches)))
    assert masks.any(axis=1).all()
    assert (masks[0] == masks[-1]).all()


def test_release_forgets_the_request(build: Build, encode: Encode, request_for: RequestFor, allowed: Allowed) -> None:
    constraint = build()
    for name in "ab":
        allowed(constraint, request_for(ASKED["regex"], encode("hello"), name))
    constraint.release(("a", "a", "unknown"), ReleaseReason.FINISHED)
    assert list(constraint._walks) == ["b"]
    constraint.close()
    assert not constraint._walks
    assert not constraint._grammars


def test_grammars_are_shared_and_bounded(
    build: Build, request_for: RequestFor, allowed: Allowed, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraint, compiled = build(max_cached_grammars=2), []
    plain = constraint._compile
    monkeypatch.setattr(constraint, "_compile", lambda asked: compiled.append(asked.text) or plain(asked))
    for name in "abc":
        asked = {"json": {"const": 1}}  # equal, and not the same object
        constraint.check(request_for(asked, (), name))
        allowed(constraint, request_for(asked, (), name))
    assert compiled == ['{"const": 1}']
    constraint.check(request_for({"json": {"const": True}}))
    constraint.check(request_for({"json": {"const": 1}}))
    constraint.check(request_for({"json": {"const": 1}, "disable_any_whitespace": True}))
    assert compiled == ['{"const": 1}', '{"const": true}', '{"const": 1}']
    assert [(asked.text, asked.whitespace != "") for asked in constraint._grammars] == [
        ('{"const": 1}', True),
        ('{"const": 1}', False),
    ]


def test_check_keeps_no_request(build: Build, request_for: RequestFor) -> None:
    constraint = build()
    constraint.check(request_for(ASKED["json"]))
    assert not constraint._walks
