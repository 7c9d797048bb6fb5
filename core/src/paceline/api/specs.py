"""What a hook returns: a declaration, from which the host builds the object that does the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from paceline.api.facts import TargetFacts

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["Needs", "Spec"]

CapabilitiesT = TypeVar("CapabilitiesT")
ContextT = TypeVar("ContextT")
ObjectT = TypeVar("ObjectT")

Needs = frozenset[str]


@dataclass(frozen=True, kw_only=True)  # no slots: a parametrised alias sets an attribute on what it makes
class Spec(Generic[CapabilitiesT, ContextT, ObjectT]):
    """A plugin's declaration of one object.

    Attributes:
        name: The name that a configuration uses; ``[a-z][a-z0-9_]*``.
        summary: One line for listings.
        options: A pydantic model class. The host validates the user's options with it (unknown keys are
            refused with the nearest known one) and exports its JSON schema.
        requires_api: PEP 440 range of ``paceline.api`` versions, such as ``">=0.1,<0.2"``.
        describe: ``(options, target) -> capabilities``. Reads configurations only: no weights, no allocation.
        build: ``(options, context) -> object``. Called once, after every plugin was described.
        needs: Capabilities of the host that must be there, such as ``"hidden_states"``.
    """

    name: str
    summary: str
    options: type[BaseModel]
    requires_api: str
    describe: Callable[[Any, TargetFacts], CapabilitiesT]
    build: Callable[[Any, ContextT], ObjectT]
    needs: Needs = field(default_factory=frozenset)
