"""One source of values and what is known of each value's origin."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from paceline.config.engine import EngineConfig
from paceline.config.errors import ConfigError

__all__ = ["DEFAULT", "Layer", "Origin", "Source", "checked"]


class Source(StrEnum):
    """Where a value may come from, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one value came from.

    Attributes:
        source: The kind of source.
        place: ``FILE:LINE`` or the variable's name; empty where the source says it all.
        path: The key as it is written there.
    """

    source: Source
    place: str = ""
    path: str = ""

    def __str__(self) -> str:
        prefix = "environment variable " if self.source is Source.ENVIRONMENT else ""
        return f"{prefix}{self.place}" if self.place else str(self.source)


DEFAULT = Origin(Source.DEFAULT)


@dataclass(slots=True)
class Layer:
    """The values of one source.

    Attributes:
        values: By field of ``EngineConfig``.
        origins: By field, and by ``field.key`` for options whose own place is known.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)

    def origin(self, name: str, key: str = "") -> Origin:
        """Where a field, or an option in it, came from."""
        return self.origins.get(f"{name}.{key}", self.origins[name])


def checked(layer: Layer) -> Layer:
    """The layer with every value validated by itself.

    Raises:
        ConfigError: naming place, key, value and bound of each fault.
    """
    values: dict[str, Any] = {}
    faults: list[str] = []
    for name, value in layer.values.items():
        try:
            values[name] = _adapter(name).validate_python(value)
        except ValidationError as error:
            faults += [_fault(layer.origins[name], value, bound["loc"], bound["msg"]) for bound in error.errors()]
        except ConfigError as error:  # from a plugin in a list, which validates itself
            faults.append(f"{layer.origins[name]}: {layer.origins[name].path}: {error.message}")
    if faults:
        raise ConfigError("; ".join(dict.fromkeys(faults)))
    return Layer(values, layer.origins)


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    info = EngineConfig.model_fields[name]
    annotated: Any = Annotated[info.annotation, info]
    return TypeAdapter(annotated)


def _fault(origin: Origin, value: object, loc: tuple[int | str, ...], bound: str) -> str:
    if loc and isinstance(loc[0], int) and isinstance(value, list):  # an entry of a list
        return f"{origin}: {origin.path}[{loc[0]}] = {value[loc[0]]!r:.80}: {bound}"
    remedy = "; put it in quotes" if bound.endswith("a valid string") and not loc else ""
    return f"{origin}: {origin.path} = {value!r:.80}: {bound}{remedy}"
