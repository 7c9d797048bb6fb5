"""Checks of what plugins answer: lengths and ranges, always; they cost a few array operations a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.api import Drafts, DraftShape, PluginError
from paceline.engine.plan import DraftRows

__all__ = ["check_budgets", "check_drafts", "check_lengths"]


def _host(values: Any, name: str, ndim: int) -> np.ndarray:
    array = values.cpu().numpy() if hasattr(values, "cpu") else np.asarray(values)
    if array.ndim != ndim or not np.issubdtype(array.dtype, np.integer):
        raise PluginError(f"{name} is {array.dtype} of shape {array.shape}; give integers with {ndim} dimension(s)")
    return array.astype(np.int64, copy=False)


def _fail_at(bad: np.ndarray, name: str, values: np.ndarray, bound: str) -> None:
    if bad.any():
        at = tuple(int(index) for index in np.argwhere(bad)[0])
        raise PluginError(f"{name}{list(at)} is {values[at]}; it must be {bound}")


def check_budgets(budgets: Any, num_requests: int) -> np.ndarray:
    """Budgets as int64 ``[requests]``.

    Raises:
        PluginError: on a wrong shape, or a negative budget.
    """
    array = _host(budgets, "budgets", 1)
    if len(array) != num_requests:
        raise PluginError(f"budgets has {len(array)} entries for {num_requests} requests")
    _fail_at(array < 0, "budgets", array, "0 or more")
    return array


def check_lengths(lengths: Any, longest: np.ndarray) -> np.ndarray:
    """Trimmed lengths as int64 ``[requests]``, each between 0 and ``longest``.

    Raises:
        PluginError: on a wrong shape or range.
    """
    array = _host(lengths, "trimmed lengths", 1)
    if len(array) != len(longest):
        raise PluginError(f"trimmed lengths has {len(array)} entries for {len(longest)} requests")
    _fail_at((array < 0) | (array > longest), "trimmed lengths", array, "between 0 and the draft's own length")
    return array


def check_drafts(drafts: Drafts, budgets: np.ndarray, vocab_size: int, shape: DraftShape) -> DraftRows:
    """Drafts on the host, trimmed to the longest row.

    Raises:
        PluginError: naming the entry and the bound that it breaks.
    """
    if not isinstance(drafts, Drafts):
        raise PluginError(f"propose() returned {type(drafts).__name__}; return paceline.api.Drafts")
    tokens, lengths = _host(drafts.tokens, "Drafts.tokens", 2), _host(drafts.lengths, "Drafts.lengths", 1)
    if len(tokens) != len(budgets) or len(lengths) != len(budgets):
        raise PluginError(f"Drafts has {len(tokens)} rows and {len(lengths)} lengths for {len(budgets)} requests")
    _fail_at((lengths < 0) | (lengths > budgets), "Drafts.lengths", lengths, "between 0 and the request's budget")
    _fail_at(lengths > tokens.shape[1], "Drafts.lengths", lengths, f"at most the width {tokens.shape[1]}")
    used = np.arange(tokens.shape[1]) < lengths[:, None]
    _fail_at(used & ((tokens < 0) | (tokens >= vocab_size)), "Drafts.tokens", tokens, f"in [0, {vocab_size})")
    return DraftRows(tokens, lengths, _check_parents(drafts, tokens, used, shape)).trimmed(lengths)


def _check_parents(drafts: Drafts, tokens: np.ndarray, used: np.ndarray, shape: DraftShape) -> np.ndarray | None:
    if drafts.parents is None:
        return None
    if shape is DraftShape.CHAIN:
        raise PluginError("Drafts.parents is given, but the proposer's capabilities say shape = chain")
    parents = _host(drafts.parents, "Drafts.parents", 2)
    if parents.shape != tokens.shape:
        raise PluginError(f"Drafts.parents has shape {parents.shape}, Drafts.tokens {tokens.shape}; make them equal")
    nodes = np.arange(tokens.shape[1])
    _fail_at(used & ((parents < -1) | (parents >= nodes)), "Drafts.parents", parents, "-1 or an earlier node")
    return parents
