"""The configuration in force: command line over environment over file over defaults, and where each value came from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.engine import EngineConfig
from paceline.config.environment import CONFIG_VARIABLE, read_environment
from paceline.config.errors import ConfigError
from paceline.config.file import read_file
from paceline.config.keywords import engine_fields
from paceline.config.layer import DEFAULT, Layer, Origin, Source, checked
from paceline.config.layout import DEFAULT_MODEL
from paceline.host.policy_file import POLICY_NAME

__all__ = ["FILE_NAME", "Resolved", "resolve"]

FILE_NAME = "paceline.yaml"

_OPTIONS_OF = {
    "proposer": "proposer_options",
    "eviction_policy": "eviction_policy_options",
    "controller": "controller_options",
}
_KV_SIZES = ("num_gpu_blocks_override", "kv_cache_memory_bytes")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration and its origins.

    Attributes:
        config: The configuration in force.
        file: The file that was read, or ``None``.
        origins: By field, or ``field.key`` for single options; what is missing is a default.
    """

    config: EngineConfig
    file: Path | None
    origins: Mapping[str, Origin]

    def rows(self) -> list[tuple[str, Any, Origin]]:
        """``(name, value, origin)`` of every field, options of plugins one by one."""
        rows: list[tuple[str, Any, Origin]] = []
        for name, value in self.config.model_dump(mode="json").items():
            if name in _OPTIONS_OF.values() and value:
                rows += [(f"{name}.{key}", own, self.origins[f"{name}.{key}"]) for key, own in value.items()]
            else:
                rows.append((name, value, self.origins.get(name, DEFAULT)))
        return rows


def resolve(
    command_line: Mapping[str, Any], file: Path | None = None, environ: Mapping[str, str] | None = None
) -> Resolved:
    """Put the sources together.

    A name of a plugin in a stronger source takes nothing from the options that a weaker source gives to another plugin.
    Options for the same plugin are merged key by key.

    Args:
        command_line: Arguments as ``LLM`` takes them, ``model`` too; only what was given.
        file: The file named on the command line. Without one it is the one that ``PACELINE_CONFIG`` names, else
            ``paceline.yaml`` in the working directory, if there is one.
        environ: The environment, ``os.environ`` if left out.

    Raises:
        ConfigError: naming source, key, value, bound and the nearest known key.
    """
    variables = os.environ if environ is None else environ
    named = file or (Path(variables[CONFIG_VARIABLE]) if variables.get(CONFIG_VARIABLE) else None)
    found = named or (Path(FILE_NAME) if Path(FILE_NAME).is_file() else None)
    from_file = Layer() if found is None else checked(read_file(found))
    if named is None:
        _refuse_trust(from_file)
    layers = (from_file, checked(read_environment(variables)), checked(_command_line(command_line)))
    values, origins = _merged((_policy_nearby(), *layers))
    return Resolved(_built(values, origins), found, origins)


def _policy_nearby() -> Layer:
    if not os.path.lexists(POLICY_NAME):
        return Layer()
    place = Origin(Source.FILE, "the working directory", "plugin_policy")
    return Layer({"plugin_policy": POLICY_NAME}, {"plugin_policy": place})


def _command_line(arguments: Mapping[str, Any]) -> Layer:
    values = engine_fields(arguments)
    return Layer(values, {name: Origin(Source.COMMAND_LINE, path=name) for name in values})


def _refuse_trust(layer: Layer) -> None:
    """A folder that one merely stands in must not make the code of a checkpoint run."""
    if layer.values.get("trust_remote_code"):
        origin = layer.origins["trust_remote_code"]
        raise ConfigError(
            f"{origin}: {origin.path} = True counts only in a file that is named; if you trust this file, "
            f"give --config {FILE_NAME} or set {CONFIG_VARIABLE}"
        )


def _merged(layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[str, Origin]]:
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for layer in layers:
        for name in _overruled(values, layer.values):
            values.pop(name, None)
            origins = {key: origin for key, origin in origins.items() if key.split(".")[0] != name}
        for name, value in layer.values.items():
            if name in _OPTIONS_OF.values():
                values[name] = values.get(name, {}) | value
                origins |= {f"{name}.{key}": layer.origin(name, key) for key in value}
            else:
                values[name] = value
            origins[name] = layer.origin(name)
    return values, origins


def _overruled(weaker: Mapping[str, Any], stronger: Mapping[str, Any]) -> list[str]:
    """Fields of weaker sources that mean nothing beside what a stronger one says."""
    names = [
        options
        for name, options in _OPTIONS_OF.items()
        if name in stronger and stronger[name] != weaker.get(name, EngineConfig.model_fields[name].default)
    ]
    if "proposer" in stronger and stronger["proposer"] is None:
        names.append("num_speculative_tokens")
    if any(stronger.get(name) is not None for name in _KV_SIZES):
        names += _KV_SIZES
    return names


def _built(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> EngineConfig:
    try:
        return EngineConfig(**({"model": DEFAULT_MODEL} | dict(values)))
    except ConfigError as error:
        named = re.findall(r"\w+", error.message)
        given = [f"{name} from {origins[name]}" for name in origins if name in named and "." not in name]
        raise ConfigError(f"{error.message} ({', '.join(given)})" if given else error.message) from None
