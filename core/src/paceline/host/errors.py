"""What can go wrong between the host and a plugin, one class and code for each stage."""

from __future__ import annotations

from paceline.api.errors import PluginError

__all__ = [
    "PluginApiError",
    "PluginCallError",
    "PluginChangedError",
    "PluginClaimError",
    "PluginConflictError",
    "PluginDeniedError",
    "PluginEditableError",
    "PluginHashError",
    "PluginImportError",
    "PluginMetadataError",
    "PluginMissingError",
    "PluginNeedError",
    "PluginNotAllowedError",
    "PluginNotFoundError",
    "PluginNotLockedError",
    "PluginOptionsError",
    "PluginRecordError",
    "PluginRefusedError",
    "PluginSignatureError",
    "PluginStrangeFileError",
    "PluginVersionError",
    "PolicyFileError",
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


class PolicyFileError(PluginError):
    """The plugin policy or the lock cannot be read, or says what cannot be meant."""

    code = "PACELINE-E210"


class PluginRefusedError(PluginError):
    """The plugin policy refuses a plugin, before its code is imported; a subclass for each reason.

    Attributes:
        rule: Which rule of which file refuses it.
        remedy: What to do.
    """

    def __init__(self, culprit: object, rule: str, remedy: str) -> None:
        super().__init__(f"{culprit} is refused: {rule}; {remedy}")
        self.rule = rule
        self.remedy = remedy


class PluginDeniedError(PluginRefusedError):
    """The policy denies the distribution."""

    code = "PACELINE-E211"


class PluginNotAllowedError(PluginRefusedError):
    """The policy allows others, or other versions."""

    code = "PACELINE-E212"


class PluginHashError(PluginRefusedError):
    """The installed files do not have a hash that the policy requires."""

    code = "PACELINE-E213"


class PluginNotLockedError(PluginRefusedError):
    """The lock does not have the plugin."""

    code = "PACELINE-E214"


class PluginVersionError(PluginRefusedError):
    """The lock has another version."""

    code = "PACELINE-E215"


class PluginClaimError(PluginRefusedError):
    """Another distribution claims a name that the lock gives to one."""

    code = "PACELINE-E216"


class PluginMissingError(PluginRefusedError):
    """The lock has the plugin, and it is not installed."""

    code = "PACELINE-E217"


class PluginEditableError(PluginRefusedError):
    """An editable install: its files may change at any time, and no hash holds for them."""

    code = "PACELINE-E218"


class PluginChangedError(PluginRefusedError):
    """The plugin's files, its entry point or what it declares are not those that were locked."""

    code = "PACELINE-E219"


class PluginStrangeFileError(PluginRefusedError):
    """Code that the installer did not record would run in the plugin's name."""

    code = "PACELINE-E220"


class PluginRecordError(PluginRefusedError):
    """There is no usable record of the installed files, so that nothing can be checked."""

    code = "PACELINE-E221"
