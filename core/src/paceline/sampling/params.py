"""What a caller may ask of sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from paceline.api.errors import did_you_mean
from paceline.sampling.errors import BeamSearchError, SamplingParamsError
from paceline.sampling.structured import StructuredOutputsParams

__all__ = ["SamplingParams"]

MIN_TEMPERATURE = 1e-5
MAX_TEMPERATURE = 1e4
MAX_LOGPROBS = 20
MAX_SAMPLES = 16384

TokenId = Annotated[int, Field(ge=0)]
Bias = Annotated[float, Field(ge=-100, le=100)]


_BEAM_SEARCH_NAMES = ("use_beam_search", "best_of")


class SamplingParams(BaseModel):
    """How one request is sampled. Immutable.

    Attributes:
        n: Completions of the prompt; with more than one, number j is sampled under ``derive_seed(seed, j)``.
        presence_penalty: Taken off the logits of tokens in the output so far.
        frequency_penalty: Taken off once for each time that a token stands in the output.
        repetition_penalty: Logits of tokens in prompt or output are divided by it if positive, else multiplied.
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
        prompt_logprobs: The same for each prompt token but the first. The prompt is computed anew for it: the prefix
            cache is not read.
        logit_bias: ``token id -> number`` added to its logit; ids may be strings of digits, as JSON has them.
        allowed_token_ids: Only these may be chosen; ``None`` = all.
        stop: Strings that end the output; they are searched in its text, from token ``min_tokens`` on.
        include_stop_str_in_output: Whether the stop string stays in the text.
        skip_special_tokens: Whether special tokens are left out of the text.
        bad_words: Texts that may not be completed in the output, be it at its start or after a space.
        structured_outputs: The form that the output must have: ``StructuredOutputsParams``, or a mapping of its fields.
        constraints: ``name -> what is asked`` of further constraint plugins that the engine was built with.

    Logits are edited in this order: allowed ids, constraints, bad words and ``min_tokens``; bias; penalties; then
    temperature, min-p, top-k and top-p.

    Raises:
        SamplingParamsError: for an unknown name or a value out of bounds.
        BeamSearchError: for the names that other engines have for beam search.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    n: int = Field(1, ge=1, le=MAX_SAMPLES, description="1 is one completion")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="0 is off")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="0 is off")
    repetition_penalty: float = Field(1.0, ge=0.01, le=100, description="1 is off")
    temperature: float = Field(1.0, ge=0, le=MAX_TEMPERATURE, description="0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1, description="1 is off")
    top_k: int = Field(0, ge=-1, lt=2**63, description="0 and -1 are off")
    min_p: float = Field(0.0, ge=0, le=1, description="0 is off")
    seed: int | None = Field(None, ge=0, lt=2**63, description="None draws a random one")
    max_tokens: int | None = Field(16, ge=1, description="None is up to the context limit")
    min_tokens: int = Field(0, ge=0, description="0 is off")
    stop_token_ids: list[TokenId] = Field(default_factory=list, description="a list of token ids")
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="a string or a list of strings, none of them empty"
    )
    include_stop_str_in_output: bool = Field(False, description="True or False")
    skip_special_tokens: bool = Field(True, description="True or False")
    ignore_eos: bool = Field(False, description="True or False")
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="None is no report")
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="None is no report")
    logit_bias: dict[TokenId, Bias] = Field(default_factory=dict, description="token ids with numbers from -100 to 100")
    allowed_token_ids: list[TokenId] | None = Field(None, min_length=1, description="a list of token ids; None is all")
    bad_words: list[str] = Field(default_factory=list, description="a list of texts")
    structured_outputs: StructuredOutputsParams | None = Field(None, description="a mapping with one kind; None is off")
    constraints: dict[str, Any] = Field(default_factory=dict, description="names of constraint plugins with values")

    def __init__(self, **values: Any) -> None:
        for name in _BEAM_SEARCH_NAMES:
            if name in values:
                raise BeamSearchError.asked_by(name)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SamplingParamsError("; ".join(map(_explain, error.errors()))) from None

    @field_validator("stop", mode="before")
    @classmethod
    def _as_strings(cls, value: object) -> object:
        if value is None:
            return []
        if isinstance(value, str):
            return [value]
        return list(value) if isinstance(value, tuple | set | frozenset) else value

    @field_validator("stop_token_ids", "bad_words", mode="before")
    @classmethod
    def _as_list(cls, value: object) -> object:
        if value is None:
            return []
        return list(value) if isinstance(value, tuple | set | frozenset) else value

    @field_validator("structured_outputs", mode="before")
    @classmethod
    def _as_structured_outputs(cls, value: object) -> object:
        return StructuredOutputsParams(**value) if isinstance(value, Mapping) else value

    @field_validator("constraints", mode="before")
    @classmethod
    def _as_mapping(cls, value: object) -> object:
        return {} if value is None else value

    @field_validator("allowed_token_ids", mode="before")
    @classmethod
    def _as_list_or_none(cls, value: object) -> object:
        return list(value) if isinstance(value, tuple | set | frozenset) else value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _with_number_keys(cls, value: object) -> object:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            return value
        return {int(key) if isinstance(key, str) and key.isdecimal() else key: bias for key, bias in value.items()}

    @field_validator("bad_words")
    @classmethod
    def _not_blank(cls, words: list[str]) -> list[str]:
        if not all(word.strip() for word in words):
            raise PydanticCustomError("blank", "a bad word should be more than white space")
        return words

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
    def has_penalties(self) -> bool:
        """Whether tokens seen before change the logits."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)

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
