"""The progress bar of a stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["StageProgress", "say", "stage_progress"]


class StageProgress:
    """Counts a stage's units."""

    def __init__(self, progress: Progress, name: str, total: int, done: int) -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=total, completed=done, note="")

    def advance(self, note: str) -> None:
        """One more unit is done; ``note`` says how it went."""
        self._progress.update(self._task, advance=1, note=note)

    def say(self, line: str) -> None:
        """A line that stays, on any stderr."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def stage_progress(name: str, total: int, done: int = 0) -> Iterator[StageProgress]:
    """A bar on a terminal's stderr; nothing elsewhere."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield StageProgress(progress, name, total, done)


def say(line: str) -> None:
    """One line of a stage's result, on stderr."""
    Console(stderr=True, highlight=False).print(line, markup=False, soft_wrap=True)
