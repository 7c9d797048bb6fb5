"""``paceline plugins`` under a policy."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from paceline.config.plugin_commands import app
from paceline.host.discovery import discover


@pytest.fixture
def run(work, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERMINAL_WIDTH", "400")
    return lambda *args: CliRunner().invoke(app, args)


def test_list_says_what_may_run(site, run, policy):
    site.proposer("alpha")
    site.proposer("bravo")
    policy('mode = "allow"\nallow = ["paceline-alpha"]\n')

    rows = {row["name"]: row for row in json.loads(run("list", "--json").stdout)}
    assert (rows["alpha"]["state"], rows["alpha"]["why"]) == (
        "installed",
        'not imported; paceline-plugins.toml: allow[0] = "paceline-alpha"',
    )
    assert rows["bravo"]["state"] == "refused"
    assert rows["bravo"]["why"] == "PACELINE-E212: paceline-plugins.toml: allow does not name paceline-bravo"
    assert run("list").stdout.endswith("\nPlugin policy: allow (paceline-plugins.toml)\n")


def test_a_refused_plugin_is_not_imported_to_be_shown(site, run, policy):
    site.proposer("bravo")
    policy('mode = "allow"\n')

    listed = run("list", "--load", "bravo", "--json")
    assert listed.exit_code == 1 and "E212" in listed.stdout
    shown = run("show", "bravo")
    assert (shown.exit_code, shown.stdout) == (1, "") and shown.stderr.startswith("PACELINE-E212: ")
    assert "mod_bravo" not in sys.modules


def test_show_prints_the_schema_alone(site, run):
    site.proposer("parrot")

    schema = json.loads(run("show", "parrot", "--schema").stdout)
    assert schema.keys() == {"proposer parrot"}
    assert schema["proposer parrot"]["properties"]["ngram_max"]["maximum"] == 16
    assert json.loads(run("show", "parrot", "--schema", "--json").stdout) == schema
    site.proposer("bad", "raise SystemExit(3)\n")
    assert run("show", "bad", "--schema").exit_code == 1


def test_why_names_the_rule_that_lets_run(site, run, policy):
    site.proposer("alpha")
    policy('mode = "allow"\nallow = ["paceline-alpha>=1"]\n')

    found = json.loads(run("why", "alpha", "--json").stdout)
    assert found == {
        "name": "alpha",
        "plugin": 'plugin "alpha" 1.0 (distribution paceline-alpha, entry point "alpha = mod_alpha")',
        "permitted": True,
        "policy": "allow (paceline-plugins.toml)",
        "rule": 'paceline-plugins.toml: allow[0] = "paceline-alpha>=1"',
        "code": "",
        "remedy": "",
    }
    told = run("why", "alpha")
    assert told.exit_code == 0 and told.stdout.splitlines() == [
        'plugin "alpha" 1.0 (distribution paceline-alpha, entry point "alpha = mod_alpha") may run',
        "  policy: allow (paceline-plugins.toml)",
        '  rule: paceline-plugins.toml: allow[0] = "paceline-alpha>=1"',
    ]
    assert "mod_alpha" not in sys.modules


def test_why_names_the_rule_that_refuses_and_the_remedy(site, run, policy):
    site.proposer("alpha")
    policy('mode = "open"\ndeny = ["paceline-alpha"]\n')

    told = run("why", "alpha")
    assert told.exit_code == 1
    assert told.stdout.splitlines()[0].endswith("is refused (PACELINE-E211)")
    assert '  rule: paceline-plugins.toml: deny[0] = "paceline-alpha"' in told.stdout
    assert "  remedy: take it out of the configuration, or out of deny" in told.stdout
    found = json.loads(run("why", "alpha", "--json").stdout)
    assert (found["permitted"], found["code"]) == (False, "PACELINE-E211")


@pytest.mark.parametrize(
    ("name", "rule"),
    [("alpha", 'no paceline-plugins.toml, so that mode is "open"'), ("lru", "built into paceline-core")],
)
def test_why_without_a_policy(site, run, name, rule):
    site.proposer("alpha")
    assert f"  rule: {rule}" in run("why", name).stdout


def test_why_of_a_name_that_nothing_has(site, run):
    told = run("why", "gone")
    assert told.exit_code == 1
    assert told.stdout.startswith("gone cannot run (PACELINE-E201)\n") and "is not installed" in told.stdout


def test_lock_has_what_the_configuration_names_and_verify_holds_it(site, run, work):
    site.proposer("alpha")
    site.proposer("bravo")
    (work / "paceline.yaml").write_text("speculation: {proposer: alpha}\n")

    made = run("lock")
    assert made.exit_code == 0 and made.stdout.endswith("paceline.lock: 1 locked\n")
    text = (work / "paceline.lock").read_text()
    assert 'name = "alpha"' in text and "bravo" not in text and "lru" not in text
    assert 'requires_api = [">=0.1,<0.2"]\nkinds = ["proposer"]\nneeds = []\nhash = "sha256:' in text

    assert json.loads(run("verify", "--json").stdout) == [
        {
            "name": "alpha",
            "distribution": "paceline-alpha",
            "version": "1.0",
            "state": "ok",
            "code": "",
            "why": "as it was locked",
        }
    ]
    (site.folder / "mod_alpha.py").write_text("raise SystemExit(3)\n")
    told = run("verify")
    assert told.exit_code == 1 and "refused  PACELINE-E219 plugin" in told.stdout
    assert json.loads(run("verify", "--json").stdout)[0]["code"] == "PACELINE-E219"


def test_lock_says_what_it_wrote_as_json(site, run, work):
    site.proposer("alpha")

    made = json.loads(run("lock", "--engine-option", "proposer=alpha", "--json").stdout)
    assert made["file"] == "paceline.lock"
    assert [(own["name"], own["kinds"]) for own in made["plugins"]] == [("alpha", ["proposer"])]


def test_lock_all_has_every_installed_plugin_but_the_core_s(site, run, work, monkeypatch):
    for name in ("bravo", "alpha"):
        site.proposer(name)
    found = [plugin for plugin in discover() if plugin.distribution == "paceline-core" or "mod_" in plugin.value]
    monkeypatch.setattr("paceline.config.plugin_commands.discover", lambda: tuple(found))
    first = json.loads(run("lock", "--all", "--json").stdout)
    text = (work / "paceline.lock").read_text()
    assert [own["name"] for own in first["plugins"]] == ["alpha", "bravo"]
    run("lock", "--all")
    assert (work / "paceline.lock").read_text() == text


def test_lock_writes_nothing_when_a_plugin_is_refused(site, run, work):
    site.proposer("alpha")
    (site.proposer("bravo") / "RECORD").unlink()
    (work / "paceline.lock").write_text("as it was")

    refused = run("lock", "--engine-option", "proposer=bravo")
    assert refused.exit_code == 1 and refused.stderr.startswith("PACELINE-E221: ")
    assert (work / "paceline.lock").read_text() == "as it was"


def test_lock_lies_beside_the_policy(site, run, work):
    (work / "team").mkdir()
    (work / "team" / "p.toml").write_text('mode = "locked"\n')
    site.proposer("alpha")

    assert "E210: lock team/paceline.lock is missing" in run("list", "--plugin-policy", "team/p.toml").stderr
    made = run("lock", "--plugin-policy", "team/p.toml", "--engine-option", "proposer=alpha")
    assert made.stdout.endswith("team/paceline.lock: 1 locked\n")
    assert run("why", "alpha", "--plugin-policy", "team/p.toml").exit_code == 0
    assert "alpha of paceline-alpha 1.0, sha256:" in run("why", "alpha", "--plugin-policy", "team/p.toml").stdout


def test_a_lock_that_cannot_be_read_is_written_anew(site, run, work):
    site.proposer("alpha")
    (work / "paceline-plugins.toml").write_text('mode = "locked"\n')
    (work / "paceline.lock").write_text("half a lo")

    assert "E210: lock paceline.lock is not TOML that can be read" in run("verify").stderr
    assert run("lock", "--engine-option", "proposer=alpha").exit_code == 0
    assert run("verify").exit_code == 0


def test_lock_that_cannot_be_written(run, work):
    (work / "paceline.lock").mkdir()
    failed = run("lock")
    assert failed.exit_code == 2 and 'lock "paceline.lock" cannot be written: Is a directory' in failed.stderr


def test_verify_without_a_lock(run, work):
    assert "PACELINE-E210: lock paceline.lock is missing" in run("verify").stderr


LISTING = """
import sys
from paceline.cli import app
try:
    app(["plugins", "list", "--json"])
finally:
    found = {name.split(".")[0] for name in sys.modules} & {"torch", "transformers", "yaml", "rich", "safetensors"}
    print(*sorted(found | {name for name in sys.modules if name.startswith("mod_")}), file=sys.stderr)
"""


@pytest.mark.parametrize("mode", ["open", "allow", "locked"])
def test_a_listing_imports_neither_a_plugin_nor_what_only_engines_need(site, lock, policy, mode):
    for index in range(25):
        site.proposer(f"plugin_{index:02}")
    lock(*(f"plugin_{index:02}" for index in range(25)))
    policy(f'mode = "{mode}"\n')

    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", LISTING], env=env, capture_output=True, text=True, check=False)
    rows = {row["name"]: row["state"] for row in json.loads(done.stdout)}
    expected = "refused" if mode == "allow" else "installed"
    assert {rows[f"plugin_{index:02}"] for index in range(25)} == {expected}
    assert done.stderr == "\n"
