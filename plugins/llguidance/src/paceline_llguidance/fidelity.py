"""What llguidance 1.9 takes of a JSON schema and does not keep: refused, because output would not match the schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

__all__ = ["unkept"]


def unkept(schema: Any) -> str:
    """Return why output could break a schema although llguidance takes it; ``""`` where nothing is known against it.

    Each place is looked at alone: bounds that only ``allOf`` or ``$ref`` bring together are not seen.
    """
    return next(_reasons(schema), "")


def _reasons(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        yield from _repeated_keys(schema)
        yield from _whole_bound(schema)
    if isinstance(schema, Mapping | list | tuple):
        for part in schema.values() if isinstance(schema, Mapping) else schema:
            yield from _reasons(part)


def _repeated_keys(schema: Mapping[str, Any]) -> Iterator[str]:
    """Properties that are not declared may repeat, and a JSON parser keeps one of each name."""
    fewest, required = schema.get("minProperties", 0), schema.get("required", ())
    if _is_number(fewest) and isinstance(required, list | tuple) and fewest > max(1, len(required)):
        yield f"minProperties {fewest} counts a property twice if its name is repeated; list the names as required"


def _whole_bound(schema: Mapping[str, Any]) -> Iterator[str]:
    """A whole number that is an exclusive bound is let through where the other bound is less than 1 away."""
    lower, lower_excluded = _bound(schema, "minimum", "exclusiveMinimum")
    upper, upper_excluded = _bound(schema, "maximum", "exclusiveMaximum")
    if lower is None or upper is None or not lower < upper < lower + 1:
        return
    for bound, is_excluded in ((lower, lower_excluded), (upper, upper_excluded)):
        if is_excluded and bound == int(bound):
            yield f"the exclusive bound {bound} would be let through, with bounds from {lower} to {upper}; include it"


def _bound(schema: Mapping[str, Any], included: str, excluded: str) -> tuple[Any, bool]:
    own, exclusive = schema.get(included), schema.get(excluded)
    if exclusive is True:  # draft 4
        return (own, True) if _is_number(own) else (None, False)
    if _is_number(exclusive):
        return exclusive, True
    return (own, False) if _is_number(own) else (None, False)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
