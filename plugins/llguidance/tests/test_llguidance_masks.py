"""Masks: what they allow, end tokens, trees, and histories that are forbidden."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from paceline.api import ConstrainedRequest, Constraint, ConstraintBatch, ConstraintError
from paceline_llguidance.constraint import LLGuidanceConstraint

Build = Callable[..., Constraint]
Encode = Callable[[str], list[int]]
RequestFor = Callable[..., ConstrainedRequest]
BatchOf = Callable[..., ConstraintBatch]
Allowed = Callable[..., set[int]]

CHOICE = {"choice": ["hello", "hello world", "help", "the quick fox"]}
REGEX = {"regex": "(hello|help|the quick)( [0-9]{1,3})*"}


def test_a_choice_allows_what_leads_to_one_and_no_more(
    build: Build, encode: Encode, decode: Callable[[Sequence[int]], str], request_for: RequestFor, allowed: Allowed
) -> None:
    choices = ["hello", "hello world", "help", "é日", '"\\', "the"]
    constraint, reached = build(), set()
    open_outputs: list[list[int]] = [[]]
    while open_outputs:
        output = open_outputs.pop()
        text = decode(output)
        for token in allowed(constraint, request_for({"choice": choices}, output)):
            if token == 0:
                reached.add(text)
            else:
                open_outputs.append([*output, token])
                longer = decode([*output, token]).rstrip("\ufffd")
                assert any(choice.startswith(longer) for choice in choices)
    assert reached == set(choices)


def test_end_tokens_come_exactly_where_the_grammar_may_end(
    build: Build, encode: Encode, request_for: RequestFor, allowed: Allowed
) -> None:
    constraint, ends = build(), (0, 1, 300)
    asked = {"regex": "hello( world)?"}
    hello, world = encode("hello"), encode(" world")
    begun = [allowed(constraint, request_for(asked, hello[:length], ends=ends)) for length in range(len(hello))]
    assert all(ids and not ids & set(ends) for ids in begun)
    after_hello = allowed(constraint, request_for(asked, hello, ends=ends))
    assert after_hello > set(ends)
    assert world[0] in after_hello
    assert allowed(constraint, request_for(asked, hello + world, ends=ends)) == set(ends)


@pytest.mark.parametrize("end", [0, 1, 300])
def test_nothing_follows_an_end_token(
    build: Build, encode: Encode, request_for: RequestFor, allowed: Allowed, end: int
) -> None:
    constraint, asked, hello = build(), {"regex": "hello( world)?"}, encode("hello")
    request = request_for(asked, hello, ends=(0, 1, 300))
    assert allowed(constraint, request, [end]) == set()
    assert allowed(constraint, request, [end, end]) == set()
    assert allowed(constraint, request_for(asked, [*hello, end], ends=(0, 1, 300))) == set()


def test_an_end_token_that_is_text_ends_and_never_is_text(
    build: Build, encode: Encode, request_for: RequestFor, allowed: Allowed
) -> None:
    constraint, asked = build(), {"regex": "(ab)*"}
    (a,), (b,) = encode("a"), encode("b")
    assert allowed(constraint, request_for(asked, ends=(0,))) >= {0, a}
    assert allowed(constraint, request_for(asked, ends=(a, b))) == {a, b}
    assert allowed(constraint, request_for(asked, ends=(b,)), [a]) == set()
    with pytest.raises(ConstraintError, match="after 1 tokens of output, no token can come next, or only such as end"):
        allowed(constraint, request_for(asked, [a], ends=(b,)))


def test_special_tokens_are_no_text(build: Build, request_for: RequestFor, allowed: Allowed, vocab_size: int) -> None:
    ids = allowed(build(), request_for({"regex": "(?s:.)*"}, ends=(1,)))
    assert ids & {0, 1, 2} == {1}
    assert len(ids) > 200
    assert max(ids) < vocab_size


def test_a_grammar_may_name_a_special_token(build: Build, request_for: RequestFor, allowed: Allowed) -> None:
    constraint, asked = build(), {"grammar": "start: <|pad|> | <|stop|>"}
    assert allowed(constraint, request_for(asked)) == {1, 2}
    assert allowed(constraint, request_for(asked, [2])) == {0}


def test_ids_beyond_the_vocabulary_are_zeros(
    target: Any, tokenizer: Any, request_for: RequestFor, batch_of: BatchOf, vocab_size: int
) -> None:
    from paceline_llguidance.vocabulary import Vocabulary

    num_ids = vocab_size - 14
    constraint = LLGuidanceConstraint(Vocabulary(tokenizer, num_ids), whitespace="", max_cached_grammars=1)
    masks = constraint.masks(batch_of((request_for({"regex": "(?s:.)*"}, ends=(0, num_ids)), [[], [num_ids + 3]])))
    assert num_ids % 8
    assert masks.shape == (2, -(-num_ids // 8))
    assert np.unpackbits(masks, axis=1, bitorder="little")[:, num_ids:].sum() == 0
    assert masks[0].any()
    assert not masks[1].any()


def test_rows_of_a_tree_each_follow_their_own_path(
    build: Build, encode: Encode, request_for: RequestFor, batch_of: BatchOf, allowed: Allowed
) -> None:
    asked, hello, the = CHOICE, encode("hello world"), encode("the quick fox")
    tree = [[], hello[:1], the[:1], hello[:2], the[:2], hello[:1], hello[:3], the[:4], the[:3]]
    masks = build().masks(batch_of((request_for(asked), tree)))
    for drafted, mask in zip(tree, masks, strict=True):
        ids = set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())
        assert ids == allowed(build(), request_for(asked, drafted))
        assert ids


def test_no_rows_and_no_requests_are_fine(
    build: Build, request_for: RequestFor, batch_of: BatchOf, vocab_size: int
) -> None:
    constraint = build()
    assert constraint.masks(batch_of()).shape == (0, -(-vocab_size // 8))
    assert constraint.masks(batch_of((request_for(REGEX), []))).shape == (0, -(-vocab_size // 8))


@pytest.mark.parametrize("bad", [-5, 2, 5, 300, 301, 302, 5000, 2**40])
def test_a_history_that_is_forbidden_gives_zeros(
    build: Build, encode: Encode, request_for: RequestFor, allowed: Allowed, bad: int
) -> None:
    constraint, asked, hello = build(), REGEX, encode("hello")
    request = request_for(asked, hello[:1])
    if bad >= 0:
        assert allowed(constraint, request, [bad]) == set()
        assert allowed(constraint, request, [bad, *hello[1:]]) == set()
        assert allowed(constraint, request, [*hello[1:], bad]) == set()
    forbidden = request_for(asked, [hello[0], bad])
    assert allowed(constraint, forbidden) == set()
    assert allowed(constraint, forbidden, hello[1:]) == set()
    assert allowed(constraint, request_for(asked, [hello[0], bad, *hello[1:]])) == set()
    assert allowed(constraint, request_for(asked, hello)) > {0}


def test_a_token_that_spells_forced_text_otherwise_is_forbidden_too(
    build: Build, encode: Encode, request_for: RequestFor, allowed: Allowed
) -> None:
    """Text that a grammar forces is written in its usual tokens; others would fit it byte by byte."""
    constraint, asked = build(), {"regex": "hello"}
    (letter,) = encode("h")
    assert allowed(constraint, request_for(asked)) == {encode("hello")[0]} != {letter}
    assert allowed(constraint, request_for(asked), [letter]) == set()
    assert allowed(constraint, request_for(asked, [letter])) == set()
