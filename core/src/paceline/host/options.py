"""Validation by pydantic models, with one typed error that names option, value, bound and nearest known option."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from paceline.api.errors import PacelineError, did_you_mean

__all__ = ["CheckedModel", "validate_options"]

ModelT = TypeVar("ModelT", bound=BaseModel)

_MAX_VALUE_CHARS = 80


class CheckedModel(BaseModel):
    """A frozen model whose constructor raises ``error_class`` instead of pydantic's error; unknown names are refused.

    Attributes:
        owner: What the values belong to, the first words of a message.
        error_class: The error raised.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    owner: ClassVar[str]
    error_class: ClassVar[type[PacelineError]]

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise self.error_class(_describe(type(self), values, self.owner, error)) from None


def validate_options(
    model: type[ModelT], values: Mapping[str, Any], *, owner: str, error_class: type[PacelineError]
) -> ModelT:
    """Build ``model`` from ``values``.

    Unknown names are refused even where the model would ignore them, unless it asks for extra values.

    Args:
        model: The pydantic model.
        values: The user's values by name or alias.
        owner: What the values belong to, the first words of the message.
        error_class: The error raised.

    Raises:
        PacelineError: an ``error_class`` that names every fault.
    """
    unknown = [] if model.model_config.get("extra") == "allow" else [key for key in values if key not in _keys(model)]
    if unknown:
        raise error_class(f"{owner}: " + "; ".join(_unknown(model, key, values[key]) for key in unknown))
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise error_class(_describe(model, values, owner, error)) from None


def _describe(model: type[BaseModel], values: Mapping[str, Any], owner: str, error: ValidationError) -> str:
    faults = dict.fromkeys(_fault(model, values, details) for details in error.errors(include_url=False))
    return f"{owner}: {'; '.join(faults)}"


def _fault(model: type[BaseModel], values: Mapping[str, Any], details: ErrorDetails) -> str:
    loc = details["loc"]
    bound = details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if details["type"] == "extra_forbidden" and len(loc) == 1:
        return _unknown(model, str(loc[0]), details["input"])
    if details["type"] == "missing":
        return f'option "{".".join(map(str, loc))}" is required'
    path = ".".join(map(str, _path_in(values, loc)))
    return f'option "{path}" = {_shown(details["input"])}: {bound}' if path else bound


def _path_in(values: Any, loc: tuple[int | str, ...]) -> Iterator[int | str]:
    # pydantic adds the members of unions to the location; the user knows only what was written.
    for part in loc:
        is_key = isinstance(values, Mapping) and part in values
        is_index = isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)
        if not (is_key or is_index):
            return
        yield part
        values = values[part]


def _unknown(model: type[BaseModel], key: str, value: object) -> str:
    return f'unknown option "{key}" = {_shown(value)}{did_you_mean(key, _keys(model))}'


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 3] + "..."


def _keys(model: type[BaseModel]) -> set[str]:
    config = model.model_config
    by_name = bool(config.get("populate_by_name") or config.get("validate_by_name"))
    return {key for name, field in model.model_fields.items() for key in _keys_of(name, field, by_name)}


def _keys_of(name: str, field: FieldInfo, by_name: bool) -> Iterator[str]:
    alias = field.validation_alias or field.alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    for choice in choices:
        first = choice.path[0] if isinstance(choice, AliasPath) else choice
        if isinstance(first, str):
            yield first
    if alias is None or by_name:
        yield name
