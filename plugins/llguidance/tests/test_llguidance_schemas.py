"""Random walks through random JSON schemas: whatever the masks let through is valid under the schema."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest

from paceline.api import ConstrainedRequest, Constraint, ConstraintBatch

END, MAX_TOKENS, NUM_DRAFTED = 0, 800, 3


@pytest.fixture(scope="module")
def closes(vocab_size: int, decode: Callable[[Sequence[int]], str]) -> np.ndarray:
    """bool ``[vocab]``: tokens that close a string, a list or an object, or go on to the next member."""
    return np.array([bool(set(decode([token])) & set('"]},')) for token in range(vocab_size)])


@pytest.fixture
def walk(
    vocab_size: int,
    closes: np.ndarray,
    request_for: Callable[..., ConstrainedRequest],
    batch_of: Callable[..., ConstraintBatch],
) -> Callable[..., list[int]]:
    """``(constraint, asked, rng) -> output``: random logits; with speculation, every mask is asked for twice."""

    def choose(mask: np.ndarray, logits: np.ndarray) -> int:
        allowed = np.unpackbits(mask, bitorder="little")[:vocab_size].astype(bool)
        assert allowed.any()
        return int(np.where(allowed, logits, -np.inf).argmax())

    def go(constraint: Constraint, asked: Any, rng: np.random.Generator) -> list[int]:
        output: list[int] = []
        while len(output) < MAX_TOKENS and END not in output[-1:]:
            urge = closes * len(output) / 40  # or a random model would hardly ever end
            drafted: list[int] = []
            for _ in range(NUM_DRAFTED):
                mask = constraint.masks(batch_of((request_for(asked, output), [drafted])))[0]
                drafted.append(choose(mask, rng.normal(size=vocab_size) + urge))
                if drafted[-1] == END:
                    break
            output += drafted
        return output

    return go


@pytest.mark.parametrize("first_seed", range(0, 200, 50))
def test_walks_end_in_valid_json(
    build: Callable[..., Constraint],
    walk: Callable[..., list[int]],
    decode: Callable[[Sequence[int]], str],
    random_schema: Callable[[random.Random], dict[str, Any]],
    first_seed: int,
) -> None:
    constraints = [build(whitespace=whitespace) for whitespace in ("bounded", "compact", "flexible")]
    for seed in range(first_seed, first_seed + 50):
        schema = random_schema(random.Random(seed))
        jsonschema.Draft202012Validator.check_schema(schema)
        output = walk(constraints[seed % 3], {"json": schema}, np.random.default_rng(seed))
        assert output[-1] == END, (seed, decode(output))
        text = decode(output[:-1])
        errors = list(jsonschema.Draft202012Validator(schema).iter_errors(json.loads(text)))
        assert not errors, (seed, text, schema)


def test_the_schemas_use_every_keyword(random_schema: Callable[[random.Random], dict[str, Any]]) -> None:
    text = json.dumps([random_schema(random.Random(seed)) for seed in range(200)])
    for keyword in (
        *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs"),
        *("properties", "required", "additionalProperties", "patternProperties", "maxProperties"),
        *("items", "prefixItems", "minItems", "maxItems"),
        *("minLength", "maxLength", "pattern"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    ):
        assert f'"{keyword}": ' in text, keyword
