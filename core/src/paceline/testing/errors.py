"""What can be wrong with a call of the kit or of the scaffold."""

from __future__ import annotations

from paceline.api.errors import PacelineError

__all__ = ["KitError", "ScaffoldError"]


class KitError(PacelineError):
    """The conformance kit cannot run, or was asked for what it does not have."""

    code = "PACELINE-E701"

    @classmethod
    def without_pytest(cls) -> KitError:
        """The extra is not installed."""
        return cls(
            'the conformance kit needs pytest, which is not installed; run: pip install "paceline-core[testing]"'
        )


class ScaffoldError(PacelineError):
    """A new plugin cannot be written as asked."""

    code = "PACELINE-E702"
