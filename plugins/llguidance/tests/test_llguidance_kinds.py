"""What may be asked: every kind, white space, and the refusals with their reasons and remedies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from llguidance import LLParserLimits

from paceline.api import ConstrainedRequest, Constraint, ConstraintBatch, ConstraintError
from paceline_llguidance import constraint as constraint_module
from paceline_llguidance.asked import REMEDIES

Build = Callable[..., Constraint]
Takes = Callable[..., bool]

OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "integer"}}},
    "required": ["a"],
    "additionalProperties": False,
}
MAP = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}


@pytest.fixture
def takes(
    encode: Callable[[str], list[int]],
    request_for: Callable[..., ConstrainedRequest],
    batch_of: Callable[..., ConstraintBatch],
) -> Takes:
    """``(constraint, asked, text) -> whether the text may be the output``, spelled one token per byte or in words."""

    def ends(constraint: Constraint, asked: Any, tokens: list[int]) -> bool:
        masks = constraint.masks(batch_of((request_for(asked), [tokens])))
        return bool(masks[0, 0] & 1)

    def text(constraint: Constraint, asked: Any, text: str) -> bool:
        spelled = [token for letter in text for token in encode(letter)]
        return ends(constraint, asked, spelled) or ends(constraint, asked, encode(text))

    return text


@pytest.mark.parametrize(
    ("asked", "good", "bad"),
    [
        ({"json": OBJECT}, ['{"a":1}', '{"a": 1, "b": [2, -3]}'], ["{}", '{"b":[1],"a":1}', '{"a":1.5}', ' {"a":1}']),
        ({"json": '{"enum": ["é", 2.5, null]}'}, ['"é"', "2.5", "null"], ["2", "é", '"e"']),
        ({"json": MAP}, ['{"a":1,"b":"x"}', "{}"], ['{"a":"x"}', '{"b":1}', '{"\\u0061":"x"}']),
        ({"json_object": True}, ["{}", '{"x": [1, {"y": null}]}'], ["[]", "1", '{"x"}', '{"\\u0061":1}']),
        ({"json_object": False, "regex": "^a+b?$"}, ["a", "aab"], ["", "b", "abb", "^a"]),
        ({"choice": ["yes", "no", ' "q"\\', "日本\n", "a/b"]}, ["yes", ' "q"\\', "日本\n", "a/b"], ["", "ye", "yesno"]),
        ({"grammar": 'start: "x" n\nn: /[0-9]+/'}, ["x1", "x42"], ["x", "1"]),
        ({"grammar": 'root ::= "x" num\nnum ::= [0-9]+\n'}, ["x1", "x42"], ["x", "1"]),
    ],
)
def test_kinds(build: Build, takes: Takes, asked: dict[str, Any], good: list[str], bad: list[str]) -> None:
    constraint = build()
    assert [text for text in good if not takes(constraint, asked, text)] == []
    assert [text for text in bad if takes(constraint, asked, text)] == []


LAYOUTS = {
    "compact": '{"a":1,"b":[2,3]}',
    "one space": '{ "a": 1, "b": [ 2 , 3 ] }',
    "indented": '{\n  "a": 1,\n  "b": [\n    2,\n    3\n  ]\n}',
    "two spaces": '{  "a":1}',
    "21 spaces": "{\n" + " " * 21 + '"a":1}',
    "tab": '{\t"a":1}',
}
IN_FRONT_OR_BEHIND = ' {"a":1}', '{"a":1}\n'


@pytest.mark.parametrize(
    ("options", "request_options", "layouts"),
    [
        ({}, {}, ["compact", "one space", "indented"]),
        ({"whitespace": "compact"}, {}, ["compact"]),
        ({"whitespace": "flexible"}, {}, list(LAYOUTS)),
        ({"whitespace": "flexible"}, {"disable_any_whitespace": True}, ["compact"]),
        (
            {"whitespace": "compact"},
            {"whitespace_pattern": r"[ \t]{1,2}"},
            ["compact", "one space", "two spaces", "tab"],
        ),
    ],
)
def test_white_space(
    build: Build, takes: Takes, options: dict[str, Any], request_options: dict[str, Any], layouts: list[str]
) -> None:
    constraint, asked = build(**options), {"json": OBJECT, **request_options}
    assert [name for name, text in LAYOUTS.items() if takes(constraint, asked, text)] == layouts
    assert not any(takes(constraint, asked, text) for text in IN_FRONT_OR_BEHIND)


@pytest.mark.parametrize(("whitespace", "is_endless"), [("bounded", False), ("compact", False), ("flexible", True)])
def test_only_flexible_white_space_goes_on_for_ever(
    build: Build,
    encode: Callable[[str], list[int]],
    request_for: Callable[..., ConstrainedRequest],
    allowed: Callable[..., set[int]],
    whitespace: str,
    is_endless: bool,
) -> None:
    """What a model would write that takes white space wherever it may."""
    constraint, blanks = build(whitespace=whitespace), [encode(blank)[0] for blank in ("\n", " ", "\t", "\r")]
    output = encode("{")
    while len(output) < 100:
        ids = allowed(constraint, request_for({"json": OBJECT}, output))
        blank = next((token for token in blanks if token in ids), None)
        if blank is None:
            break
        output.append(blank)
    assert len(output) == 100 if is_endless else len(output) <= 22


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"json": {"type": "objekt"}}, ["json {'type': 'objekt'}", "Invalid type: objekt"]),
        ({"json": {"not": {"type": "string"}}}, ['Unimplemented keys: ["not"]']),
        ({"json": {"x-guidance": {"lenient": True}, "not": {}}}, ['Unimplemented keys: ["not"]']),
        ({"json": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}, ["oneOf constraints are not supported"]),
        (
            {"json": {"x-guidance": {"coerce_one_of": True}, "oneOf": [{"type": "number"}, {"type": "integer"}]}},
            ["oneOf constraints are not supported"],
        ),
        ({"json": {"type": "string", "format": "phone"}}, ["Unknown format: phone"]),
        ({"json": {"type": "string", "pattern": "("}}, ["regex parse error", "unclosed group"]),
        ({"json": {"$ref": "#/$defs/none"}}, ["Pointer '/$defs/none' does not exist"]),
        ({"json": {"$ref": "http://example.com/schema"}}, ["http://example.com/schema", "does not fetch"]),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, ["minimum (5) is greater than maximum (3)"]),
        ({"json": '{"type": '}, ['json {"type":', "Expecting value"]),
        ({"json": '{"items":' * 9000}, ["maximum recursion depth exceeded"]),
        ({"json": "[1]"}, ["Expecting object schema"]),
        ({"json": {"const": {1, 2}}}, ["it is not plain data", "set is not JSON serializable"]),
        ({"json": {"const": float("nan")}}, ["expected value"]),
        ({"json": {"minProperties": 2}}, ["minProperties 2 counts a property twice", "list the names as required"]),
        (
            {"json": {"items": {"exclusiveMinimum": 0, "maximum": 0.5}}},
            ["the exclusive bound 0 would be let through, with bounds from 0 to 0.5; include it"],
        ),
        ({"regex": "("}, ["regex (", "unclosed group"]),
        ({"regex": "a(?=b)"}, ["look-around"]),
        ({"regex": r"(a)\1"}, ["backreferences are not supported"]),
        ({"regex": r"\bfoo"}, ["not supported"]),
        ({"regex": 5}, ["regex 5", "it is a int, not a string"]),
        ({"choice": []}, ["choice []", "it is not a list of one or more strings"]),
        ({"choice": ["a", 1]}, ["choice ['a', 1]", "it is not a list of one or more strings"]),
        ({"choice": "abc"}, ["it is not a list of one or more strings"]),
        ({"choice": ["\ud800"]}, ["surrogates not allowed"]),
        ({"grammar": "start: foo"}, ['unknown name: "foo"']),
        ({"grammar": 'root = "a"'}, ["Failed to convert the grammar from GBNF to Lark", "Expected ::="]),
        ({"grammar": 'other ::= "a"'}, ["No 'root' rule found"]),
        ({"grammar": "start: <|nobody|>"}, ["unknown special token", "<|nobody|>"]),
        ({"grammar": "root ::= " + "(" * 9000}, ["maximum recursion depth exceeded"]),
    ],
)
def test_what_cannot_be_enforced_is_refused(
    build: Build, request_for: Callable[..., ConstrainedRequest], asked: dict[str, Any], words: list[str]
) -> None:
    constraint, request = build(), request_for(asked, (), "r7")
    with pytest.raises(ConstraintError) as refusal:
        constraint.check(request)
    message = str(refusal.value)
    assert message.startswith('PACELINE-E503: request "r7": ')
    assert [word for word in [*words, "cannot be enforced: ", REMEDIES[next(iter(asked))]] if word not in message] == []
    assert len(message) < 800


@pytest.mark.parametrize("asked", [{"json": {"$ref": "#"}}, {"grammar": 'start: start "a"'}])
def test_what_can_never_be_completed_is_refused(
    build: Build, request_for: Callable[..., ConstrainedRequest], asked: dict[str, Any]
) -> None:
    with pytest.raises(ConstraintError, match=r"after 0 tokens of output, no token can come next, .* can be completed"):
        build().check(request_for(asked))


def test_what_is_taken_is_not_refused_for_its_neighbours(
    build: Build, request_for: Callable[..., ConstrainedRequest]
) -> None:
    for schema in (
        {"type": "object", "minProperties": 2, "required": ["a", "b"]},
        {"type": "object", "minProperties": 1},
        {"properties": {"minProperties": {"minimum": 0}, "exclusiveMinimum": {"maximum": 0.5}}},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "number", "minimum": 0, "exclusiveMaximum": 0.5},
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "number", "minimum": 0, "maximum": 0.5, "exclusiveMaximum": False},
    ):
        build().check(request_for({"json": schema}))


def test_draft_4_bounds_are_read_too(build: Build, request_for: Callable[..., ConstrainedRequest]) -> None:
    schema = {"type": "number", "minimum": -0.5, "maximum": 0, "exclusiveMaximum": True}
    with pytest.raises(ConstraintError, match=r"exclusive bound 0 would be let through, with bounds from -0\.5 to 0;"):
        build().check(request_for({"json": schema}))


def test_a_matcher_that_gives_up_allows_nothing(
    build: Build,
    encode: Callable[[str], list[int]],
    request_for: Callable[..., ConstrainedRequest],
    batch_of: Callable[..., ConstraintBatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After drafted tokens that is a row of zeros, after emitted ones an error; other requests are not concerned."""
    monkeypatch.setattr(constraint_module, "LIMITS", LLParserLimits(step_lexer_fuel=200, verbose_errors=False))
    asked, path = {"regex": "(a|b)*a(a|b){12}"}, [encode("ab"[index % 2])[0] for index in range(20)]
    constraint = build()
    rows = [path[:size] for size in range(20)]
    masks = constraint.masks(batch_of((request_for(asked), rows)))
    failed = int(np.flatnonzero(~masks.any(axis=1))[0])
    assert 3 < failed < 19
    assert not masks[failed:].any()
    assert (constraint.masks(batch_of((request_for(asked, path[: failed - 1]), [[]]))) == masks[failed - 1]).all()
    for size in (failed, failed, failed + 1):
        message = f'request "r": regex .* after {size} tokens of output, llguidance gives up: .*; bound its repetitions'
        with pytest.raises(ConstraintError, match=message):
            constraint.masks(batch_of((request_for(asked, path[:size]), [[]])))
    for name in ("r", "other"):
        assert (constraint.masks(batch_of((request_for(asked, path[:3], name), [[]]))) == masks[3]).all()


def test_one_request_that_gives_up_spoils_the_grammar_of_no_other(
    build: Build,
    encode: Callable[[str], list[int]],
    request_for: Callable[..., ConstrainedRequest],
    batch_of: Callable[..., ConstraintBatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constraint_module, "LIMITS", LLParserLimits(step_lexer_fuel=200, verbose_errors=False))
    asked, path = {"regex": "(a|b)*a(a|b){12}"}, [encode("ab"[index % 2])[0] for index in range(20)]
    constraint, alone = build(), build()
    constraint.masks(batch_of((request_for(asked, path[:2], "other"), [[]])))
    with pytest.raises(ConstraintError, match='request "r"'):
        constraint.masks(batch_of((request_for(asked, path), [[]])))
    assert not constraint._grammars
    for name in ("other", "next"):
        request = request_for(asked, path[:5], name)
        assert (constraint.masks(batch_of((request, [[]]))) == alone.masks(batch_of((request, [[]])))).all()
