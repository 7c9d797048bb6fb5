"""The options of the proposer."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from paceline_draft_model.kv_group import TARGET

__all__ = ["DraftModelOptions"]

_RANGES = re.compile(r"\s*\d+(\s*-\s*\d+)?(\s*,\s*\d+(\s*-\s*\d+)?)*\s*")


def _numbers(value: Any) -> Any:
    """``"0-3,8"`` as the list that it stands for, and a number as a list of it; other values as they are."""
    if not isinstance(value, str):
        return [value] if isinstance(value, int) else value
    if not _RANGES.fullmatch(value):
        raise ValueError(f'{value!r} is no list of layers; write "0-7", "0-3,8,10" or a list of numbers')
    ranges = [[int(number) for number in part.split("-")] for part in value.split(",")]
    return [layer for bounds in ranges for layer in range(bounds[0], bounds[-1] + 1)]


class DraftModelOptions(BaseModel):
    """Which model drafts, how it chooses, and how its vocabulary meets the target's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        min_length=1, description='Folder, GGUF file or hub id of a causal LM; "target": the target\'s own weights.'
    )
    sampling: Literal["coupled", "greedy"] = Field(
        default="coupled",
        description="Draft with the verifier's own rule and noise, or the likeliest token. Text is drafted greedily.",
    )
    vocabulary: Literal["same", "intersect", "text"] = Field(
        default="same",
        description="The draft model has the target's tokenizer, drafts the tokens that both have, or drafts text.",
    )
    min_confidence: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="End a draft after a token to which the draft model gives less; 0 = off.",
    )
    layers: Annotated[tuple[int, ...] | None, BeforeValidator(_numbers)] = Field(
        default=None, description='Layers of the target that draft, such as "0-7" or a list; only with model="target".'
    )

    @field_validator("layers")
    @classmethod
    def _ascending(cls, layers: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if layers is not None and (not layers or layers[0] < 0 or list(layers) != sorted(set(layers))):
            raise ValueError(f"{list(layers)} is no list of layers; give at least one, from 0 on, ascending")
        return layers

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.layers is not None and self.model != TARGET:
            raise ValueError(f'layers are those of the target; use model="target" with them, not {self.model!r}')
        if self.vocabulary == "text" and "sampling" in self.model_fields_set and self.sampling == "coupled":
            raise ValueError('vocabulary="text" drafts greedily; leave sampling out, or set it to "greedy"')
        return self
