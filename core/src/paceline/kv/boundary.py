"""Where the code of policies and contributors runs: the engine gives a context that names the plugin in errors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

__all__ = ["Boundary", "no_boundary"]

Boundary = Callable[[str], AbstractContextManager[None]]
"""``hook -> context``."""


def no_boundary(hook: str) -> AbstractContextManager[None]:
    """For objects that are no plugin's."""
    return nullcontext()
