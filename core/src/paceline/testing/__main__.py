"""``python -m paceline.testing --plugin NAME``: the same as ``paceline plugins check NAME``."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.host.commands import AsJson
from paceline.testing.commands import Options, Settings, check

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    plugin: Annotated[str, typer.Option("--plugin", help="Name of the plugin, as in a configuration.")],
    option: Options = None,
    setting: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Hold an installed plugin to the contract of its kind, on a tiny model; fail unless every must holds."""
    check(plugin, option or [], setting or [], as_json)


if __name__ == "__main__":
    app(prog_name="python -m paceline.testing")
