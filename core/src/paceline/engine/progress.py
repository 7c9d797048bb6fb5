"""The progress bar of long work."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["GenerationProgress"]


class GenerationProgress:
    """Requests done, and tokens per second. Shown on a terminal's stderr only."""

    def __init__(self, num_requests: int, shown: bool) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not (shown and console.is_terminal),
            transient=True,
        )
        self._task = self._progress.add_task("generating", total=num_requests, rate="")
        self._num_tokens = 0
        self._started_s = time.perf_counter()

    def __enter__(self) -> GenerationProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self, num_finished: int, num_tokens: int) -> None:
        """Add what a step brought."""
        if self._progress.disable:
            return
        self._num_tokens += num_tokens
        rate = self._num_tokens / max(time.perf_counter() - self._started_s, 1e-9)
        self._progress.update(self._task, advance=num_finished, rate=f"{rate:.1f} tokens/s")
