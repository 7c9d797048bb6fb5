"""Acceptance of chains."""

from __future__ import annotations

from torch import Tensor

__all__ = ["accept_chain"]


def accept_chain(drafts: Tensor, chosen: Tensor) -> Tensor:
    """Count the drafts that equal the target's own choice, up to the first that does not.

    The emitted tokens of row b are ``chosen[b, : num_accepted[b] + 1]``. They do not depend on the drafts beyond how
    many there are (drafter-invariant sampling; Daliri, Musco, Suresh 2024).

    Args:
        drafts: int64 ``[B, K]``, padded with -1.
        chosen: int64 ``[B, K + 1]``; ``chosen[b, i]`` is the target's token after ``drafts[b, :i]``.

    Returns:
        int64 ``[B]``, from 0 to K.
    """
    followed = (drafts == chosen[:, :-1]) & (drafts >= 0)
    return followed.long().cumprod(-1).sum(-1)
