"""The progress bar of a benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["BenchProgress", "bench_progress"]


class BenchProgress:
    """Shows what runs now and how much is left."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def start(self, num_turns: int) -> None:
        """Begin counting turns."""
        self._progress.reset(self._task, total=num_turns, completed=-1)

    def show(self, description: str) -> None:
        """Say what goes on, without counting it."""
        self._progress.update(self._task, description=description)

    def turn(self, description: str) -> None:
        """Say what begins now; what began before is done."""
        self._progress.update(self._task, description=description, advance=1)


@contextmanager
def bench_progress() -> Iterator[BenchProgress]:
    """A bar on a terminal's stderr; nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        yield BenchProgress(progress)
