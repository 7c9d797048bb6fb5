"""What can go wrong between the host and a plugin, one class and code for each stage."""

from __future__ import annotations

from paceline.api.errors import PluginError

__all__ = [
    "PluginApiError",
    "PluginCallError",
    "PluginConflictError",
    "PluginImportError",
    "PluginMetadataError",
    "PluginNeedError",
    "PluginNotFoundError",
    "PluginOptionsError",
    "PluginSignatureError",
]


class PluginNotFoundError(PluginError):
    """The configuration names a plugin that is not installed."""

    code = "PACELINE-E201"


class PluginConflictError(PluginError):
    """Several distributions offer the name that the configuration uses."""

    code = "PACELINE-E202"


class PluginNeedError(PluginError):
    """A plugin needs a capability that the engine does not give."""

    code = "PACELINE-E203"


class PluginApiError(PluginError):
    """A plugin was made for another version of ``paceline.api``, or does not say for which."""

    code = "PACELINE-E204"


class PluginImportError(PluginError):
    """The module of an entry point cannot be imported."""

    code = "PACELINE-E205"


class PluginSignatureError(PluginError):
    """A hook, a spec or a built object does not have the form that the contract asks for."""

    code = "PACELINE-E206"


class PluginMetadataError(PluginError):
    """The installed metadata of a plugin cannot be used."""

    code = "PACELINE-E207"


class PluginCallError(PluginError):
    """A plugin raised an exception."""

    code = "PACELINE-E208"


class PluginOptionsError(PluginError):
    """The options given to a plugin are not valid."""

    code = "PACELINE-E209"
