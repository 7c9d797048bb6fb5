"""What a caller may ask of structured outputs."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from paceline.host.options import CheckedModel
from paceline.sampling.errors import SamplingParamsError

__all__ = ["StructuredOutputsParams"]

_KINDS = ("json", "json_object", "regex", "choice", "grammar")
_Text = Annotated[str, Field(min_length=1)]


class StructuredOutputsParams(CheckedModel):
    """The form that an output must have: one of the first five, by its name.

    Attributes:
        json_schema: ``json``: JSON schema, as a mapping or as text.
        json_object: ``True`` for any JSON object.
        regex: Regular expression that the whole output matches.
        choice: Texts, one of which is the output.
        grammar: Context-free grammar, in the notation of the constraint plugin.
        whitespace_pattern: Regular expression of the white space between JSON tokens.
        disable_any_whitespace: Whether JSON is written without white space.

    Raises:
        SamplingParamsError: for an unknown name, a bad value, and unless exactly one form is given.
    """

    owner = "structured_outputs"
    error_class = SamplingParamsError

    json_schema: dict[str, Any] | _Text | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: _Text | None = None
    choice: Annotated[list[_Text], Field(min_length=1)] | None = None
    grammar: _Text | None = None
    whitespace_pattern: _Text | None = None
    disable_any_whitespace: bool = False

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if len(self._given) != 1:
            raise ValueError(f"give exactly one of {', '.join(_KINDS)}; given: {', '.join(self._given) or 'none'}")
        return self

    @property
    def _given(self) -> list[str]:
        return [kind for kind in _KINDS if self.asked.get(kind) not in (None, False)]

    @property
    def kind(self) -> str:
        """Which form is given."""
        return self._given[0]

    @property
    def asked(self) -> dict[str, Any]:
        """What is given, by name."""
        return self.model_dump(by_alias=True, exclude_defaults=True)
