"""One spelling for names of distributions, wherever they come from: metadata, configuration, policy or lock."""

from __future__ import annotations

import re

__all__ = ["canonical_name"]

_SEPARATORS = re.compile(r"[-_.]+")


def canonical_name(name: str) -> str:
    """Return the canonical spelling (PEP 503): lower case, a single hyphen for each run of ``-``, ``_`` and ``.``."""
    return _SEPARATORS.sub("-", name.strip()).lower()
