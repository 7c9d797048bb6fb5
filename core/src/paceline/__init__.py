"""Paceline: an LLM inference framework with a small core and a stable extension API."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.engine.llm import LLM
    from paceline.engine.outputs import CompletionOutput, RequestOutput
    from paceline.sampling.params import SamplingParams
    from paceline.sampling.structured import StructuredOutputsParams

__version__ = "0.1.0"

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "StructuredOutputsParams"]

_HOMES = {
    "LLM": "paceline.engine.llm",
    "CompletionOutput": "paceline.engine.outputs",
    "RequestOutput": "paceline.engine.outputs",
    "SamplingParams": "paceline.sampling.params",
    "StructuredOutputsParams": "paceline.sampling.structured",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import paceline.api`` costs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
