"""Environment variables: ``PACELINE_`` and the name of a field, in capitals."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from paceline.config.engine import EngineConfig
from paceline.config.errors import ConfigError
from paceline.config.layer import Layer, Origin, Source
from paceline.config.values import read_value

__all__ = ["CONFIG_VARIABLE", "read_environment"]

PREFIX = "PACELINE_"
CONFIG_VARIABLE = "PACELINE_CONFIG"

_VARIABLES = {PREFIX + name.upper(): name for name in EngineConfig.model_fields}
_TEXT_FIELDS = {name for name, info in EngineConfig.model_fields.items() if info.annotation in (str, str | None)}
_TYPO_CUTOFF = 0.85  # other variables with the prefix are not ours to judge: Kubernetes sets PACELINE_PORT and more


def read_environment(environ: Mapping[str, str]) -> Layer:
    """The fields given by variables; an empty variable counts as not set.

    Raises:
        ConfigError: for a variable that is all but the name of a field.
    """
    layer = Layer()
    for variable, text in environ.items():
        name = _VARIABLES.get(variable)
        if name is None:
            _refuse_misspelling(variable)
        elif text:
            layer.values[name] = text if name in _TEXT_FIELDS else read_value(text)
            layer.origins[name] = Origin(Source.ENVIRONMENT, variable, name)
    return layer


def _refuse_misspelling(variable: str) -> None:
    if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
        return
    known = {name.removeprefix(PREFIX): name for name in (*_VARIABLES, CONFIG_VARIABLE)}
    near = difflib.get_close_matches(variable.removeprefix(PREFIX), known, n=1, cutoff=_TYPO_CUTOFF)
    if near:
        raise ConfigError(f"environment variable {variable} is unknown; did you mean {known[near[0]]}?")
