"""Features that have come true and whose entries are not made yet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Backlog"]


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a request's next entries are made from.

    Attributes:
        start: Slot of the first of them.
        features: ``[n, H]``, fused; the ``i``-th belongs into slot ``start + i``, and is that of the token before.
    """

    start: int
    features: Tensor

    @property
    def stop(self) -> int:
        """Slot behind the last."""
        return self.start + len(self.features)

    def followed_by(self, later: Backlog) -> Backlog:
        """Both, where ``later`` begins at ``stop``."""
        assert later.start == self.stop, f"features for slot {later.start} after those up to {self.stop}"
        return Backlog(self.start, torch.cat([self.features, later.features]))

    def split(self, count: int) -> tuple[Backlog, Backlog]:
        """The first ``count``, and the others."""
        return Backlog(self.start, self.features[:count]), Backlog(self.start + count, self.features[count:])
