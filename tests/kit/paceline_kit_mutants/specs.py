"""How the mutants are declared: each class is one, its docstring says its fault."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict

from paceline.api import Spec


class NoOptions(BaseModel):
    """There are none."""

    model_config = ConfigDict(extra="forbid")


def name_of(made: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", made.__name__).lower()


def spec(kind: Any, made: type) -> Spec[Any, Any, Any]:
    """``made(context)`` does the work; its ``capabilities(target)`` describe it."""
    return kind(
        name=name_of(made),
        summary=made.__doc__,
        options=getattr(made, "Options", NoOptions),
        requires_api=">=0.1,<0.2",
        describe=lambda options, target: made.capabilities(target),
        build=lambda options, context: made(context),
    )
