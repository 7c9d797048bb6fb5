"""Random JSON schemas out of the keywords that can be enforced, every one satisfiable and of bounded size.

Load it anywhere with ``runpy.run_path(path)["random_schema"]``.
"""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

PATTERNS = ("^[a-f]{2,6}$", "^[A-Z][a-z]*$", "[0-9]", "^(foo|bar)-[0-9]{3}$", "^x?y+z{0,2}$")
NAMES = ("name", "a", "b c", "k\u00e9y", 'quo"te', "", "nested", "x-y_z", "$ref")
VALUES = (None, True, False, 0, -3, 12.5, "", "text", 'say "hi"\n', "日本", ["a", 1], {"k": None})


def random_schema(rng: random.Random, depth: int = 3) -> Schema:
    """Return a JSON schema (draft 2020-12), nested at most ``depth`` deep, with a recursive definition now and then."""
    schema = _schema(rng, depth)
    if "properties" in schema and rng.random() < 0.3:
        schema["properties"]["node"] = {"$ref": "#/$defs/node"}
        schema["$defs"] = {"node": _list_node(rng)}
    return schema


def _schema(rng: random.Random, depth: int) -> Schema:
    flat = (_integer, _number, _string, _pattern, _enum, _const, _plain)
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(flat)(rng)
    return rng.choice((_object, _object, _map, _array, _tuple, _any_of, _one_of, _all_of))(rng, depth - 1)


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-1200, 1200)
    schema: Schema = {"type": "integer", "minimum": low, "maximum": low + rng.choice((0, 5, 99, 4000))}
    if rng.random() < 0.2:
        return {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 30, "multipleOf": 7}
    return schema


def _number(rng: random.Random) -> Schema:
    low = round(rng.uniform(-50, 50), rng.randint(0, 3))
    if rng.random() < 0.5:
        return {"type": "number", "minimum": low, "maximum": low + rng.choice((0, 0.5, 20))}
    return {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": low + rng.choice((1, 2.5, 20))}


def _string(rng: random.Random) -> Schema:
    shortest = rng.randint(0, 6)
    return {"type": "string", "minLength": shortest, "maxLength": shortest + rng.randint(0, 6)}


def _pattern(rng: random.Random) -> Schema:
    return {"type": "string", "pattern": rng.choice(PATTERNS), "maxLength": 12}


def _enum(rng: random.Random) -> Schema:
    return {"enum": rng.sample(VALUES, rng.randint(1, 4))}


def _const(rng: random.Random) -> Schema:
    return {"const": rng.choice(VALUES)}


def _plain(rng: random.Random) -> Schema:
    return {"type": rng.choice(("boolean", "null", ["boolean", "null"]))}


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(NAMES, rng.randint(0, 4))
    schema: Schema = {"type": "object", "properties": {name: _schema(rng, depth) for name in names}}
    schema["required"] = [name for name in names if rng.random() < 0.6]
    schema["additionalProperties"] = False if rng.random() < 0.7 else _string(rng)
    return schema


def _map(rng: random.Random, depth: int) -> Schema:
    patterns = {"^n_[a-c]{1,3}$": _schema(rng, depth)}
    most = rng.randint(0, 3)
    return {"type": "object", "patternProperties": patterns, "additionalProperties": False, "maxProperties": most}


def _array(rng: random.Random, depth: int) -> Schema:
    fewest = rng.randint(0, 2)
    return {"type": "array", "items": _schema(rng, depth), "minItems": fewest, "maxItems": fewest + rng.randint(0, 3)}


def _tuple(rng: random.Random, depth: int) -> Schema:
    items = [_schema(rng, depth) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": rng.randint(0, len(items))}


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_schema(rng, depth) for _ in range(rng.randint(1, 3))]}


def _one_of(rng: random.Random, depth: int) -> Schema:
    return {"oneOf": rng.sample([_string(rng), _integer(rng), _object(rng, depth), _array(rng, depth)], 2)}


def _all_of(rng: random.Random, depth: int) -> Schema:
    left, right = (_schema(rng, depth) for _ in range(2))
    parts = [{"type": "object", "properties": {name: part}} for name, part in (("left", left), ("right", right))]
    return {"allOf": parts, "required": ["right"], "properties": {"left": True, "right": True}}


def _list_node(rng: random.Random) -> Schema:
    properties = {"value": _schema(rng, 0), "next": {"$ref": "#/$defs/node"}}
    return {"type": "object", "properties": properties, "required": ["value"], "additionalProperties": False}
