"""Ctrl-C between steps, never inside one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["interrupts_between_steps"]


@contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], bool]]:
    """Hold SIGINT back; what is yielded tells whether one came. On leaving, the one that came is raised.

    Outside the main thread, where Python delivers no signals, nothing is held back.
    """
    came = False

    def note(number: int, frame: object) -> None:
        nonlocal came
        came = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
