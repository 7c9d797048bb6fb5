"""The engine's configuration: its fields, the files and variables they come from, other engines' names for them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.config.engine import EngineConfig, PluginChoice
    from paceline.config.errors import ConfigError
    from paceline.config.keywords import engine_config

__all__ = ["ConfigError", "EngineConfig", "PluginChoice", "engine_config"]

_HOMES = {
    "ConfigError": "paceline.config.errors",
    "EngineConfig": "paceline.config.engine",
    "PluginChoice": "paceline.config.engine",
    "engine_config": "paceline.config.keywords",
}


def __getattr__(name: str) -> Any:
    """Import on first use: commands that build no engine need no pydantic."""
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline.config' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
