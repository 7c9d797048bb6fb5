"""Faults of plugins, configurations and machines that the KV cache can meet."""

from __future__ import annotations

from paceline.api.errors import PacelineError, PluginError

__all__ = ["DraftRangeError", "EvictionError", "IdentityError", "KVGroupError", "KVMemoryError"]


class IdentityError(PluginError):
    """A contributor to the cache identity gave a field that cannot be encoded, or a name that is taken."""

    code = "PACELINE-E401"


class EvictionError(PluginError):
    """An eviction policy chose what it was not offered, or nothing although blocks are needed."""

    code = "PACELINE-E402"


class DraftRangeError(PluginError):
    """A proposer reported a range of its KV that cannot be."""

    code = "PACELINE-E403"


class KVGroupError(PacelineError):
    """A KV group has a dtype that does not exist, or a name that is taken."""

    code = "PACELINE-E404"


class KVMemoryError(PacelineError):
    """The KV tensors do not fit the device."""

    code = "PACELINE-E405"
