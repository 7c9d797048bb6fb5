"""What the kit found out about a plugin, for people and for machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Card", "Result"]

_MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped", "expected": "expected"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One test.

    Attributes:
        test: Its name.
        level: ``"must"`` or ``"should"``.
        outcome: ``"passed"``, ``"failed"``, ``"skipped"``, or ``"expected"`` for a failure that was expected.
        says: What it asks of the plugin.
        why: Why it failed or was skipped; empty for one that passed.
        seconds: How long it took.
    """

    test: str
    level: str
    outcome: str
    says: str
    why: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The results of one plugin.

    Attributes:
        plugin: Its name.
        kind: What it is.
        distribution: Where it comes from.
        version: Version of the distribution.
        api: The version of ``paceline.api`` that it was tried with.
        requires_api: The versions that it was made for.
        options: The options that it was tried with.
        capabilities: What it described for the kit's model, as text.
        results: The tests, in their order.
    """

    plugin: str
    kind: str
    distribution: str
    version: str
    api: str
    requires_api: str
    options: dict[str, Any]
    capabilities: dict[str, str]
    results: tuple[Result, ...]

    @property
    def conforms(self) -> bool:
        """Whether every *must* that could be tried holds; at least one was."""
        musts = [result.outcome for result in self.results if result.level == "must"]
        return "passed" in musts and set(musts) <= {"passed", "skipped"}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "conforms": self.conforms}

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.kind} {self.plugin} ({self.distribution} {self.version})"
        yield f"paceline.api {self.api}, made for {self.requires_api}"
        for name, value in {**self.options, **self.capabilities}.items():
            yield f"  {name}: {value}"
        yield ""
        for result in self.results:
            yield f"{_MARKS[result.outcome]:8}  {result.level:6}  {result.test}  ({result.seconds:.2f} s)"
            if result.outcome != "passed":
                yield f"          {result.says}"
                yield f"          {result.why}"
        yield ""
        yield self._verdict()

    def _verdict(self) -> str:
        counts = {mark: sum(result.outcome == mark for result in self.results) for mark in _MARKS}
        told = ", ".join(f"{count} {mark}" for mark, count in counts.items() if count)
        return f"{'conforms' if self.conforms else 'DOES NOT CONFORM'}: {told}"
