"""Running a contract on an installed plugin, by pytest, in a folder of the kit's own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from unittest import mock

from paceline.api.errors import PacelineError, did_you_mean
from paceline.api.version import API_VERSION
from paceline.host.discovery import discover
from paceline.host.gate import admit
from paceline.host.locking import admitted_declarations
from paceline.host.policy_file import policy_in_force
from paceline.host.registration import Declaration
from paceline.host.selection import Address
from paceline.testing.card import Card, Result
from paceline.testing.errors import KitError
from paceline.testing.kinds import CONTRACTS

if TYPE_CHECKING:
    import pytest

    from paceline.testing.contract import Contract

__all__ = ["check_plugin"]


def check_plugin(name: str, options: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Card]:
    """Run the contracts of everything that the plugin declares under this name; a card for each kind.

    Args:
        name: As in a configuration: ``[distribution/]entry_point[:spec]``.
        options: Its options.
        settings: Attributes of the contract, such as ``asks``.

    Raises:
        PacelineError: if the plugin cannot be loaded, or the kit not be run.
    """
    return [_card(declared, name, options, settings) for declared in _declared(name)]


def _declared(name: str) -> list[Declaration]:
    policy = policy_in_force()
    plugin, _ = admit(discover(), name, policy)
    declared = admitted_declarations(plugin, policy)
    wanted = Address.parse(name).spec
    found = [each for each in declared if each.spec.name == wanted]
    if not found:
        given = ", ".join(f'{each.kind.label} "{plugin.name}:{each.spec.name}"' for each in declared)
        raise KitError(f'{plugin} declares nothing named "{wanted}"; check one of: {given}')
    return found


def _card(declared: Declaration, name: str, options: Mapping[str, Any], settings: Mapping[str, Any]) -> Card:
    contract = _derived(declared, name, options, settings)
    loaded = contract().load()
    capabilities = {} if declared.kind.name == "command" else _capabilities(contract)
    return Card(
        plugin=name,
        kind=declared.kind.label,
        distribution=loaded.distribution,
        version=loaded.version,
        api=API_VERSION,
        requires_api=declared.spec.requires_api,
        options=dict(options),
        capabilities=capabilities,
        results=tuple(_run(contract)),
    )


def _derived(
    declared: Declaration, name: str, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> type[Contract]:
    import paceline.testing as kit

    base: type[Contract] = getattr(kit, CONTRACTS[declared.kind.name])
    known = [setting for setting in base.settings if setting not in ("plugin", "options")]
    for setting in settings:
        if setting not in known:
            which = f"{declared.kind.label} {name}"
            raise KitError(f'the contract for {which} has no setting "{setting}"{did_you_mean(setting, known)}')
    return type("TestPlugin", (base,), {"plugin": name, "options": dict(options), **settings})


def _capabilities(contract: type[Contract]) -> dict[str, str]:
    own = contract()
    with own.plain() as llm:
        described = own.load().describe(llm.built.facts)
    values = {field.name: getattr(described, field.name) for field in fields(described)}
    return {name: getattr(value, "__name__", str(value)) for name, value in values.items()}


def _run(contract: type[Contract]) -> list[Result]:
    import pytest

    from paceline.testing.models import work_folder

    handle, module = tempfile.mkstemp(prefix="test_", suffix=".py", dir=work_folder())  # a new name: modules are kept
    with open(handle, "w", encoding="utf-8") as file:
        file.write("from paceline.testing.runner import collected\n\nTestPlugin = collected()\n")
    config = work_folder() / "pytest.ini"
    config.write_text("[pytest]\n", encoding="utf-8")
    own = {"PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = ["-c", str(config), "--rootdir", str(work_folder()), "--noconftest", "--import-mode=importlib"]
    recorder = Recorder()
    with mock.patch.dict(os.environ, own), mock.patch(f"{__name__}.collected", lambda: contract):
        status = pytest.main([module, *options, "-p", "no:cacheprovider", "-p", "no:terminal"], plugins=[recorder])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise KitError(
            f"pytest ended with status {int(status)} before the tests had run; run them with pytest to see why"
        )
    return recorder.results


def collected() -> type[Contract]:
    """The contract that pytest is to collect in the module that ``_run`` wrote."""
    raise AssertionError("only called by a module that the kit wrote, while the kit runs")


class Recorder:
    """A plugin of pytest's that keeps what came of each test."""

    def __init__(self) -> None:
        self.results: list[Result] = []

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Note a failure's own message, which a report has only among the lines of a traceback."""
        if call.excinfo is not None:
            text = call.excinfo.value.args[0] if call.excinfo.value.args else ""
            message = str(call.excinfo.value if isinstance(call.excinfo.value, PacelineError) else text)
            item.user_properties.append(("why", message.partition("\nassert ")[0] or call.excinfo.typename))
        function = getattr(item, "function", None)
        item.user_properties.append(("level", getattr(function, "level", "must")))
        item.user_properties.append(("says", (getattr(function, "__doc__", "") or "").partition("\n")[0]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep one result for each test: of its call, or of what went wrong before."""
        if (report.when != "call" and report.passed) or report.when == "teardown":
            return
        told = dict(report.user_properties)
        expected = getattr(report, "wasxfail", None)
        outcome: str = "expected" if expected is not None and report.skipped else report.outcome
        why = "" if outcome == "passed" else expected or told.get("why") or str(report.longrepr)
        self.results.append(
            Result(
                test=report.nodeid.rpartition("::")[2],
                level=str(told["level"]),
                outcome=outcome,
                says=str(told["says"]),
                why=str(why),
                seconds=report.duration,
            )
        )
