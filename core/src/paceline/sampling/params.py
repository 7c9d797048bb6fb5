"""What a caller may ask of sampling."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from paceline.api.errors import PacelineError, did_you_mean

__all__ = ["SamplingParams", "SamplingParamsError"]

MIN_TEMPERATURE = 1e-5
MAX_TEMPERATURE = 1e4
MAX_LOGPROBS = 20

TokenId = Annotated[int, Field(ge=0)]


class SamplingParamsError(PacelineError):
    """A sampling parameter is unknown or out of its bounds."""

    code = "PACELINE-E501"


class SamplingParams(BaseModel):
    """How one request is sampled. Immutable.

    Attributes:
        temperature: Scores are divided by it; 0 chooses greedily.
        top_p: Keep the smallest set of tokens that holds this share of the probability; 1 = off.
        top_k: Keep the k best tokens; 0 or -1 = off.
        min_p: Keep tokens at least this probable relative to the best; 0 = off.
        seed: Seed of the noise, 0 to 2**63 - 1; ``None`` draws one at admission.
        max_tokens: Most tokens to emit; ``None`` = up to the context limit.
        min_tokens: End tokens are banned until this many were emitted.
        stop_token_ids: Further ids that end the output.
        ignore_eos: Go on past the end token.
        logprobs: Report the log-probability of each emitted token and of this many best ones; ``None`` = no report.

    Raises:
        SamplingParamsError: for an unknown name or a value out of bounds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    temperature: float = Field(1.0, ge=0, le=MAX_TEMPERATURE, description="0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="1 is off")
    top_k: int = Field(0, ge=-1, lt=2**63, description="0 and -1 are off")
    min_p: float = Field(0.0, ge=0, le=1, description="0 is off")
    seed: int | None = Field(None, ge=0, lt=2**63, description="None draws a random one")
    max_tokens: int | None = Field(16, ge=1, description="None is up to the context limit")
    min_tokens: int = Field(0, ge=0, description="0 is off")
    stop_token_ids: list[TokenId] = Field(default_factory=list, description="a list of token ids")
    ignore_eos: bool = Field(False, description="True or False")
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="None is no report")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SamplingParamsError("; ".join(map(_explain, error.errors()))) from None

    @field_validator("stop_token_ids", mode="before")
    @classmethod
    def _as_list(cls, value: object) -> object:
        if value is None:
            return []
        return list(value) if isinstance(value, tuple | set | frozenset) else value

    @field_validator("temperature")
    @classmethod
    def _divisible(cls, value: float) -> float:
        if 0 < value < MIN_TEMPERATURE:
            raise PydanticCustomError("small", f"a positive value should be at least {MIN_TEMPERATURE}")
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise PydanticCustomError("order", f"min_tokens={self.min_tokens} exceeds max_tokens={self.max_tokens}")
        return self

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is always chosen."""
        return self.temperature == 0


def _explain(error: ErrorDetails) -> str:
    if not error["loc"]:
        return f"{error['msg']}; lower the one or raise the other"
    name = str(error["loc"][0])
    field = SamplingParams.model_fields.get(name)
    if field is None:
        return f'unknown sampling parameter "{name}"{did_you_mean(name, SamplingParams.model_fields)}'
    reason = error["msg"][0].lower() + error["msg"][1:]
    return f"sampling parameter {name}={error['input']!r}: {reason} ({field.description})"
