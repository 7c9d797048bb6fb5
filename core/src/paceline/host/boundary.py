"""Where plugin code is called: what it raises gets the plugin's name, version and hook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.api.errors import PacelineError
from paceline.host.discovery import InstalledPlugin
from paceline.host.errors import PluginCallError

__all__ = ["plugin_boundary"]


@contextmanager
def plugin_boundary(plugin: InstalledPlugin, hook: str) -> Iterator[None]:
    """Run plugin code; whatever it raises names the plugin.

    A ``PacelineError`` keeps its class and code and gets the names put before its message.

    Args:
        plugin: The plugin whose code runs.
        hook: What of it runs, such as ``"build"`` or ``"propose"``.

    Raises:
        PacelineError: the plugin's own.
        PluginCallError: for anything else, ``SystemExit`` included; the cause is kept.
    """
    try:
        yield
    except PacelineError as error:
        error.message = f"{plugin}, {hook}: {error.message}"
        raise
    except (Exception, SystemExit) as error:
        raise PluginCallError(f"{plugin}, {hook} raised {type(error).__name__}: {error}") from error
