"""The engine's configuration: its fields, the files and variables they come from, other engines' names for them."""

from __future__ import annotations

from paceline.config.engine import EngineConfig, PluginChoice
from paceline.config.errors import ConfigError
from paceline.config.keywords import engine_config

__all__ = ["ConfigError", "EngineConfig", "PluginChoice", "engine_config"]
