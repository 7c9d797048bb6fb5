from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from paceline.host.commands import app


@pytest.fixture
def run():
    return lambda *args: CliRunner().invoke(app, args)


def rows_of(result):
    return {row["name"]: row for row in json.loads(result.stdout)}


def test_list_shows_what_is_installed_without_importing_it(site, run):
    site.proposer("good_a", version="0.2")
    site.proposer("bad", "raise SystemExit(3)\n")

    result = run("list", "--json")

    rows = rows_of(result)
    assert result.exit_code == 0
    assert not {"mod_good_a", "mod_bad"} & sys.modules.keys()
    assert rows["good_a"] == {
        "name": "good_a",
        "distribution": "paceline-good-a",
        "version": "0.2",
        "entry_point": "good_a = mod_good_a",
        "api_range": None,
        "hooks": None,
        "state": "installed",
        "why": "not imported",
    }
    assert [*rows] == sorted(rows)


def test_list_imports_what_load_names(site, run):
    site.proposer("good_a")
    site.proposer("good_z")

    rows = rows_of(run("list", "--load", "good_z", "--json"))

    assert (rows["good_z"]["state"], rows["good_z"]["api_range"]) == ("ready", ">=0.1,<0.2")
    assert rows["good_z"]["hooks"] == ["paceline_proposers"]
    assert rows["good_a"]["state"] == "installed" and "mod_good_a" not in sys.modules


def test_list_with_a_broken_plugin_named_shows_why_and_fails(site, run):
    site.proposer("bad", "raise SystemExit(3)\n")

    result = run("list", "--load", "bad", "--json")

    assert result.exit_code == 1
    assert rows_of(result)["bad"]["state"] == "refused"
    assert "E205" in rows_of(result)["bad"]["why"] and "SystemExit: 3" in rows_of(result)["bad"]["why"]


def test_list_shows_conflicts_and_hidden_copies(site, run, make_site, tmp_path, monkeypatch):
    site.proposer("parrot", distribution="alpha-drafts")
    site.proposer("parrot", distribution="beta-drafts")
    site.proposer("twice")
    other = make_site(tmp_path / "other")
    other.proposer("twice", version="0.1")
    monkeypatch.setattr(sys, "path", [*sys.path, str(other.folder)])

    result = run("list", "--json")

    rows = [row for row in json.loads(result.stdout) if row["name"] == "parrot"]
    assert [row["why"] for row in rows] == ["also offered by beta-drafts 1.0", "also offered by alpha-drafts 1.0"]
    assert {row["state"] for row in rows} == {"conflict"}
    assert "hides the same plugin in" in rows_of(result)["twice"]["why"]
    assert run("list", "--load", "parrot").exit_code == 1
    assert run("list", "--load", "beta-drafts/parrot", "--json").exit_code == 1


def test_list_of_a_name_that_is_not_installed_fails(site, run):
    result = run("list", "--load", "gone")

    assert result.exit_code == 1
    assert 'PACELINE-E201: plugin "gone" is not installed' in result.stderr


def test_list_as_a_table(site, run):
    site.proposer("good_a")
    (site.proposer("odd") / "entry_points.txt").write_text("[paceline.plugins]\nno equals sign\n")

    lines = run("list").stdout.splitlines()

    assert lines[0].split() == ["NAME", "DISTRIBUTION", "VERSION", "API", "RANGE", "HOOKS", "STATE", "WHY"]
    assert "good_a paceline-good-a 1.0 ? ? installed not imported" in [" ".join(line.split()) for line in lines]
    assert any("- paceline-odd 1.0 ? ? refused the entry" in " ".join(line.split()) for line in lines)
    assert lines[0].index("STATE") == lines[1].index("refused")


def test_show_tells_all_about_one_plugin(site, run):
    site.proposer("parrot", version="0.2")

    told = json.loads(run("show", "parrot", "--json").stdout)
    text = run("show", "parrot").stdout

    assert told["state"] == "ready"
    (spec,) = told["specs"]
    assert (spec["kind"], spec["name"], spec["requires_api"], spec["needs"]) == (
        "proposer",
        "parrot",
        ">=0.1,<0.2",
        [],
    )
    assert spec["options"]["properties"]["ngram_max"]["maximum"] == 16
    assert "proposer parrot: A test proposer." in text
    assert "ngram_max = 3  Longest match in tokens." in text


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("import no_such_module_anywhere\n", "E205"),
        ("@hookimpl\ndef paceline_proposers():\n    return [spec(requires_api='>=9')]\n", "E204"),
        ("@hookimpl\ndef paceline_proposers():\n    return [spec(options=3)]\n", "E206"),
    ],
)
def test_show_of_a_plugin_that_cannot_run(site, run, source, code):
    site.proposer("bad", source)

    result = run("show", "bad", "--json")

    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["state"], told["specs"]) == ("refused", [])
    assert code in told["why"]


def test_show_of_a_name_that_is_not_installed(site, run):
    site.proposer("parrot")
    result = run("show", "parott")

    assert result.exit_code == 1
    assert "PACELINE-E201" in result.stderr and 'did you mean "parrot"?' in result.stderr


def test_the_command_imports_no_torch(site):
    site.proposer("parrot")
    program = (
        "import sys; from typer.testing import CliRunner; from paceline.host.commands import app;"
        "result = CliRunner().invoke(app, ['list', '--json']); assert 'mod_parrot' in result.stdout, result.output;"
        "print([name for name in sys.modules if name in ('torch', 'transformers', 'mod_parrot')])"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
