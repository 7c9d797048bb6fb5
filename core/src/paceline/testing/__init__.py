"""The conformance kit: what a plugin must do and should do, as classes of tests to derive from.

In a test suite of one's own, with plain pytest::

    from paceline.testing import ProposerContract

    class TestMine(ProposerContract):
        plugin = "my_idea"

or, for any installed plugin, ``paceline plugins check my_idea`` (``python -m paceline.testing --plugin my_idea``).
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from paceline.testing.errors import KitError

if TYPE_CHECKING:
    from paceline.testing.commands_contract import CommandContract
    from paceline.testing.constraints import ConstraintContract
    from paceline.testing.controllers import ControllerContract
    from paceline.testing.eviction import EvictionPolicyContract
    from paceline.testing.identity import IdentityContract
    from paceline.testing.models import tiny_model
    from paceline.testing.observers import ObserverContract
    from paceline.testing.proposers import ProposerContract

__all__ = [
    "CommandContract",
    "ConstraintContract",
    "ControllerContract",
    "EvictionPolicyContract",
    "IdentityContract",
    "ObserverContract",
    "ProposerContract",
    "tiny_model",
]

_HOMES = {
    "CommandContract": "paceline.testing.commands_contract",
    "ConstraintContract": "paceline.testing.constraints",
    "ControllerContract": "paceline.testing.controllers",
    "EvictionPolicyContract": "paceline.testing.eviction",
    "IdentityContract": "paceline.testing.identity",
    "ObserverContract": "paceline.testing.observers",
    "ProposerContract": "paceline.testing.proposers",
    "tiny_model": "paceline.testing.models",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that pytest can rewrite the asserts, and so that its absence is said in one line."""
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline.testing' has no attribute {name!r}")
    try:
        import pytest
    except ModuleNotFoundError as error:
        raise KitError.without_pytest() from error
    pytest.register_assert_rewrite(*(home for home in set(_HOMES.values()) if home not in sys.modules))
    return getattr(importlib.import_module(_HOMES[name]), name)
