"""Keyword arguments to fields of ``EngineConfig``: Paceline's own names and those of other engines."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from paceline.api.errors import did_you_mean
from paceline.config.argument import without_inert
from paceline.config.arguments import ARGUMENTS, SPECULATIVE_KEYS
from paceline.config.engine import EngineConfig
from paceline.config.errors import ConfigError

__all__ = ["ROWS", "engine_config", "engine_fields", "nearest_argument"]

ROWS = {row.name: row for rows in ARGUMENTS.values() for row in rows}


def engine_config(model: str, **kwargs: Any) -> EngineConfig:
    """Build a configuration from keyword arguments, those of other engines' front ends included.

    ``speculative_config={"method": M, "num_speculative_tokens": n, ...}`` names the proposer ``M``; its other keys
    are the proposer's options. The older form is ``speculative_model="[M]", num_speculative_tokens=n``, where every
    keyword that begins with ``M_`` is passed to the proposer as it is. What becomes of each argument of vLLM is in
    ``paceline.config.arguments``.

    Raises:
        ConfigError: for what is unknown, out of bounds, given twice, or refused.
    """
    return EngineConfig(model=model, **engine_fields(kwargs))


def engine_fields(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``EngineConfig`` that the arguments mean; their values are not checked yet.

    Raises:
        ConfigError: for what is unknown, given twice, or refused.
    """
    values = without_inert(kwargs, ROWS.values())
    forms = ("speculative_config", "speculative_model", "spec_method")
    given = [form for form in forms if values.get(form) is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} both name a proposer; give one")
    values = _with_speculative_config(values, values.pop("speculative_config", None))
    values = _with_speculative_model(values, values.pop("speculative_model", None))
    values = _with_short_names(values)
    values = _with_prefixed_options(values)
    _refuse_unknown(values)
    return {name: _or_default(name, value) for name, value in values.items()}


def nearest_argument(name: str) -> str:
    """``'; did you mean "x"?'`` for the nearest argument of any engine, else the list of Paceline's own."""
    fields = EngineConfig.model_fields.keys()
    near = difflib.get_close_matches(name, sorted(fields | ROWS.keys()), n=1)
    return did_you_mean(name, near or fields)


def _refuse_unknown(values: Mapping[str, Any]) -> None:
    faults = [
        f'unknown option "{name}" = {value!r:.80}{nearest_argument(name)}'
        for name, value in values.items()
        if name not in EngineConfig.model_fields
    ]
    if faults:
        raise ConfigError(f"engine configuration: {'; '.join(faults)}")


def _or_default(name: str, value: Any) -> Any:
    # None is how other engines say "not given", also where a field of ours has another default.
    return EngineConfig.model_fields[name].get_default(call_default_factory=True) if value is None else value


def _with_speculative_config(values: dict[str, Any], config: object) -> dict[str, Any]:
    if config is None:
        return values
    if not isinstance(config, Mapping):
        raise ConfigError(f'speculative_config = {config!r} is not a mapping such as {{"method": "NAME"}}')
    options = without_inert(config, SPECULATIVE_KEYS, "speculative_config.")
    method = options.pop("method", None)
    if not isinstance(method, str):
        near = next((did_you_mean(key, ["method"]) for key in config if "did" in did_you_mean(key, ["method"])), "")
        raise ConfigError(f'speculative_config needs "method", the name of a proposer; it has {config!r}{near}')
    named: dict[str, Any] = {"proposer": method, "proposer_options": options}
    if "num_speculative_tokens" in options:
        named["num_speculative_tokens"] = options.pop("num_speculative_tokens")
    return _merged(values, named, "speculative_config")


def _with_speculative_model(values: dict[str, Any], name: object) -> dict[str, Any]:
    if name is None:
        return values
    if not (isinstance(name, str) and name.startswith("[") and name.endswith("]")):
        raise ConfigError(
            f'speculative_model = {name!r} is not a proposer\'s name in brackets, such as "[NAME]"; to draft with a '
            f'model use speculative_config={{"method": NAME, "model": {name!r}, "num_speculative_tokens": n}}'
        )
    return _merged(values, {"proposer": name[1:-1]}, "speculative_model")


def _with_short_names(values: dict[str, Any]) -> dict[str, Any]:
    short = {name: values.pop(name, None) for name in ("spec_method", "spec_model", "spec_tokens")}
    named: dict[str, Any] = {"proposer": short["spec_method"], "num_speculative_tokens": short["spec_tokens"]}
    if short["spec_model"] is not None:
        named["proposer_options"] = {"model": short["spec_model"]}
    return _merged(values, {name: value for name, value in named.items() if value is not None}, "spec_method")


def _merged(values: dict[str, Any], named: dict[str, Any], source: str) -> dict[str, Any]:
    twice = sorted(values.keys() & named.keys())
    if twice:
        raise ConfigError(f"{', '.join(twice)} is given beside {source}, which says it too; give one")
    return values | named


def _with_prefixed_options(values: dict[str, Any]) -> dict[str, Any]:
    proposer = values.get("proposer")
    if not isinstance(proposer, str):
        return values
    known = EngineConfig.model_fields.keys() | ROWS.keys()
    prefixed = {key: value for key, value in values.items() if key.startswith(f"{proposer}_") and key not in known}
    rest = {key: value for key, value in values.items() if key not in prefixed}
    return rest | {"proposer_options": {**values.get("proposer_options", {}), **prefixed}}
