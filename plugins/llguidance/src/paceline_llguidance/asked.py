"""What a request asks, as text that is compared, and as a grammar of llguidance."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher, grammar_from

from paceline_llguidance.fidelity import unkept

__all__ = ["REMEDIES", "WHITESPACE", "Asked", "read_asked"]

# Flexible JSON may go on with white space for ever, and small models do; bounded JSON may not.
WHITESPACE = {"bounded": r"\x20|\n\x20{0,20}", "compact": "", "flexible": r"[\x20\n\r\t]+"}

REMEDIES = {
    "json": "use a JSON schema made of the keywords that the README of paceline-llguidance lists",
    "json_object": "ask for less, or bound it with a JSON schema",
    "regex": "use the syntax of Rust's regex crate, without look-around, word boundaries and back-references",
    "choice": "give a list of one or more strings",
    "grammar": 'give a Lark grammar with a rule "start", or GBNF with a rule "root"',
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks; equal where the grammar is.

    Attributes:
        kind: The kind of structured output.
        text: Its value as text: a JSON schema, a regular expression, a JSON list of choices, a grammar.
        whitespace: Regular expression of the white space between JSON's tokens; ``""`` allows none.
    """

    kind: str
    text: str
    whitespace: str = ""

    def to_grammar(self) -> str:
        """Return llguidance's grammar.

        Raises:
            ValueError: with llguidance's reason. Most faults show only when a matcher is made of the grammar.
        """
        return _TO_GRAMMAR[self.kind](self)


def read_asked(asked: Mapping[str, Any], whitespace: str) -> Asked:
    """Read what the core hands over.

    Args:
        asked: One of the kinds with its value, and white space as the request wants it.
        whitespace: Regular expression in force where the request does not say.

    Raises:
        ValueError: the value is not of its kind.
    """
    kind = kind_of(asked)
    value = {"type": "object"} if kind == "json_object" else asked[kind]
    text = _READ.get(kind, _read_text)(value)
    return Asked(kind, text, _whitespace(asked, whitespace) if kind.startswith("json") else "")


def kind_of(asked: Mapping[str, Any]) -> str:
    """Return which of the kinds is asked."""
    return next(kind for kind in REMEDIES if asked.get(kind) not in (None, False))


def _whitespace(asked: Mapping[str, Any], default: str) -> str:
    if asked.get("whitespace_pattern") is not None:
        return str(asked["whitespace_pattern"])
    return "" if asked.get("disable_any_whitespace") else default


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"it is a {type(value).__name__}, not a string")
    return value


def _read_json(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except TypeError as error:
        raise ValueError(f"it is not plain data: {error}") from error
    if reason := unkept(json.loads(text)):
        raise ValueError(reason)
    return text


def _read_choice(value: Any) -> str:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(choice, str) for choice in value):
        raise ValueError("it is not a list of one or more strings")
    return json.dumps(value, ensure_ascii=False)


def _from_json(asked: Asked) -> str:
    options = {
        "whitespace_flexible": asked.whitespace != "",
        "whitespace_pattern": asked.whitespace or None,
        "lenient": False,  # a keyword that cannot be enforced is refused, whatever the schema says
        "coerce_one_of": False,
        "json_allowed_escapes": 'nrbtf\\"',  # with \uXXXX a key could spell the name of another property
    }
    return LLMatcher.grammar_from_json_schema(asked.text, overrides=options)  # type: ignore[arg-type]


def _from_choice(asked: Asked) -> str:
    choices = [json.dumps(choice, ensure_ascii=False) for choice in json.loads(asked.text)]
    return LLMatcher.grammar_from_lark(f"start: {' | '.join(choices)}")


_READ: dict[str, Callable[[Any], str]] = {"json": _read_json, "json_object": _read_json, "choice": _read_choice}
_TO_GRAMMAR: dict[str, Callable[[Asked], str]] = {
    "json": _from_json,
    "json_object": _from_json,
    "regex": lambda asked: LLMatcher.grammar_from_regex(asked.text),
    "choice": _from_choice,
    "grammar": lambda asked: grammar_from("grammar", asked.text),
}
