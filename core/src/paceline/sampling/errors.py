"""Errors of sampling parameters."""

from __future__ import annotations

from typing import Self

from paceline.api.errors import PacelineError

__all__ = ["BeamSearchError", "SamplingParamsError"]


class SamplingParamsError(PacelineError):
    """A sampling parameter is unknown or out of its bounds."""

    code = "PACELINE-E501"


class BeamSearchError(SamplingParamsError):
    """Beam search was asked for."""

    code = "PACELINE-E502"

    @classmethod
    def asked_by(cls, name: str) -> Self:
        """The error for a parameter or a method of this name."""
        return cls(_NO_BEAM_SEARCH.format(name))


_NO_BEAM_SEARCH = (
    "{} is refused: beam search ranks whole sequences, so which token comes next depends on the other beams and not on "
    "the request alone, and drafts could not be verified without changing the result; sample instead with n=..., "
    "logprobs=0 and keep the completion of the highest cumulative_logprob, or use temperature=0 for the likeliest "
    "token at each position"
)
