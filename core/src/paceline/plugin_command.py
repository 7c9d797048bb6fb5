"""Running a command that a plugin brings: its flags come from the model of its options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from paceline.api.specs import Spec
from paceline.host.loading import load_one
from paceline.host.selection import Selection

__all__ = ["run_plugin_command"]


def run_plugin_command(name: str, plugin: str, arguments: Sequence[str]) -> None:
    """Run ``paceline NAME PLUGIN ARGUMENTS``.

    Raises:
        PacelineError: naming what is wrong with the plugin, its options or its run.
        SystemExit: after ``--help``, or where the arguments cannot be parsed.
    """
    selection = Selection("command", f"{plugin}:{name}")

    def read_options(spec: Spec[Any, Any, Any]) -> Mapping[str, Any]:
        return vars(_parser(f"paceline {name} {plugin}", spec).parse_args(arguments))

    loaded = load_one(selection, read_options)
    from paceline.session import SessionContext  # torch comes with it: seconds that a wrong flag must not cost

    command = loaded.build(SessionContext())
    with loaded.boundary("run"):
        command.run()


def _parser(program: str, spec: Spec[Any, Any, Any]) -> argparse.ArgumentParser:
    """One flag for each option. Absent ones are left to the model, and values stay text: the model checks them."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=spec.summary,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    schema = spec.options.model_json_schema()
    for option, field in schema.get("properties", {}).items():
        parser.add_argument(
            "--" + option.replace("_", "-"),
            dest=option,
            required=option in schema.get("required", ()),
            help=_help(spec.options, option),
            **_action(field),
        )
    return parser


def _action(field: Mapping[str, Any]) -> dict[str, Any]:
    if field.get("type") == "boolean":
        return {"action": argparse.BooleanOptionalAction}
    if field.get("type") == "array":
        return {"action": "append", "metavar": "VALUE"}
    if "enum" in field:
        return {"choices": field["enum"], "metavar": "|".join(map(str, field["enum"]))}
    return {"metavar": "VALUE"}


def _help(model: type[BaseModel], option: str) -> str:
    field = model.model_fields[option]
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    note = "Required." if field.is_required() else "" if default is None else f"Default: {default}."
    return f"{field.description or ''} {note}".strip().replace("%", "%%")
