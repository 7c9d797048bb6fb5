"""Values written as text, in variables and on the command line."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["read_value"]


def read_value(text: str) -> Any:
    """A value written as JSON where it is JSON, else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
