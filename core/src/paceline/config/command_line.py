"""What the commands share: exits, and values written as key=value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, TypeVar

import typer

from paceline.api.errors import PacelineError
from paceline.config.values import read_value

__all__ = ["EXIT_FAILED", "EXIT_INTERRUPTED", "Numerics", "clean_exit", "key_values", "parsed"]

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
T = TypeVar("T")


class Numerics(StrEnum):
    """Whether results may differ in the last bit with the batch."""

    FAST = "fast"
    EXACT = "exact"


@contextmanager
def clean_exit() -> Iterator[None]:
    """Errors of the user's end as one line on stderr, Ctrl-C without a traceback. Also a decorator of commands."""
    try:
        yield
    except PacelineError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_FAILED) from error
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def key_values(pairs: Sequence[str]) -> dict[str, Any]:
    """``key=value`` pairs; a value is read as JSON where it is JSON, else as text.

    Raises:
        ValueError: naming the pair that is none.
    """
    values = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise ValueError(f'"{pair}" is not of the form key=value')
        values[key] = read_value(text)
    return values


def parsed(option: str, parse: Callable[[Any], T], value: Any) -> T:
    """An option's value, or a usage error that names the option."""
    try:
        return parse(value)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
