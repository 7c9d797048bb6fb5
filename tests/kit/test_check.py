"""``paceline plugins check``, its module and suites of authors: what they print and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.api.version import API_VERSION
from paceline.cli import app
from paceline.testing import EvictionPolicyContract
from paceline.testing.errors import KitError
from paceline.testing.runner import check_plugin

TENANTS = {"apart": [[{"tenant": "a"}, {"tenant": "b"}]]}


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {**os.environ, **environment}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, env=own)


def check(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["plugins", "check", *arguments])
    return done.exit_code, done.output


def outcomes(name: str, **settings: Any) -> dict[str, tuple[str, str]]:
    (card,) = check_plugin(name, {}, settings)
    return {result.test: (result.outcome, result.why) for result in card.results}


def test_a_card_for_people() -> None:
    status, printed = check("lru")
    assert status == 0
    lines = printed.splitlines()
    assert lines[:2] == [
        "eviction policy lru (paceline-core 0.1.0)",
        f"paceline.api {API_VERSION}, made for >=0.1,<0.2",
    ]
    assert any(line.startswith("ok        must    test_everything_can_go  (") for line in lines)
    assert lines[-1] == "conforms: 10 passed"


def test_a_card_for_machines(mutants_site: Path) -> None:
    status, printed = check("mutants:forgets", "--json", "--setting", f"apart={json.dumps(TENANTS['apart'])}")
    (card,) = json.loads(printed)
    assert status == 1
    assert (card["plugin"], card["kind"], card["version"]) == ("mutants:forgets", "cache identity contributor", "1.0")
    assert (card["api"], card["requires_api"], card["conforms"]) == (API_VERSION, ">=0.1,<0.2", False)
    assert card["capabilities"] == {"block_level": "False"}
    failed = [result for result in card["results"] if result["outcome"] == "failed"]
    assert [(result["test"], result["level"]) for result in failed] == [("test_what_is_apart_is_not_shared", "must")]
    assert failed[0]["why"].startswith("of [{'tenant': 'a'}, {'tenant': 'b'}], the second found 32 tokens")


def test_what_cannot_be_tried_is_skipped_with_a_reason(mutants_site: Path) -> None:
    found = outcomes("mutants:tenant")
    assert found["test_what_is_apart_is_not_shared"] == (
        "skipped",
        'give "apart": pairs of metadata whose requests may not share KV',
    )
    assert found["test_block_fields_are_functions"] == ("skipped", "the contributor has no fields for blocks")


def test_a_should_that_fails_is_told_and_does_not_count(mutants_site: Path) -> None:
    status, printed = check("mutants:takes_id", "--json")
    (card,) = json.loads(printed)
    assert status == 0 and card["conforms"]
    failed = [(result["test"], result["level"]) for result in card["results"] if result["outcome"] == "failed"]
    assert failed == [("test_ids_do_not_part", "should")]


def test_expected_failures_are_strict(mutants_site: Path) -> None:
    reasons = {"test_ids_do_not_part": "it is meant so", "test_fields_are_values": "no reason at all"}
    found = outcomes("mutants:takes_id", expected_failures=reasons)
    assert found["test_ids_do_not_part"] == ("expected", "it is meant so")
    assert found["test_fields_are_values"] == ("failed", "[XPASS(strict)] no reason at all")


def test_a_must_that_is_expected_to_fail_does_not_conform(mutants_site: Path) -> None:
    (card,) = check_plugin("mutants:needs_metadata", {}, {"expected_failures": {"test_fields_are_values": "why"}})
    assert not card.conforms


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], 'plugin "nothing" is not installed'),
        (["mutants"], 'declares nothing named "mutants"; check one of: eviction policy "mutants:any_order"'),
        (
            ["lru", "--setting", "asks=[1]"],
            'the contract for eviction policy lru has no setting "asks"; known: expected_failures',
        ),
        (["ngram", "--option", "max_mtch=2"], 'did you mean "max_match"?'),
        (["lru", "--setting", 'expected_failures={"test_x": "why"}'], 'expected_failures names "test_x"; known: '),
        (["lru", "--setting", 'expected_failures={"test_choices_repeat": ""}'], "gives no reason for"),
        (["lru", "--option", "oops"], '"oops" is not of the form key=value'),
    ],
)
def test_faults_of_the_call(mutants_site: Path, arguments: list[str], message: str) -> None:
    status, printed = check(*arguments)
    assert status in (1, 2) and message in " ".join(printed.replace("│", " ").split())


def test_what_the_policy_refuses_is_not_imported(
    mutants_site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paceline-plugins.toml").write_text('mode = "allow"\nallow = []\n')
    monkeypatch.chdir(tmp_path)
    status, printed = check("ngram")
    assert status == 1 and "PACELINE-E212" in printed


def test_the_module_is_a_command_too(mutants_site: Path) -> None:
    done = python("-m", "paceline.testing", "--plugin", "mutants:gives_up", PYTHONPATH=str(mutants_site))
    assert done.returncode == 1
    assert "FAILED    must    test_everything_can_go" in done.stdout
    assert "chose nothing, and" in done.stdout and "DOES NOT CONFORM: " in done.stdout


SUITE = """
from paceline.testing import EvictionPolicyContract


class TestMine(EvictionPolicyContract):
    plugin = "mutants:first_in"


class TestNotMine(EvictionPolicyContract):
    plugin = "mutants:gives_up"
    expected_failures = {"test_everything_can_go": "it keeps two", "test_victims_are_evictable": "it keeps two"}
"""


def test_a_suite_of_an_author_runs_as_an_installed_module(mutants_site: Path) -> None:
    package = mutants_site / "own_suite"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "test_own.py").write_text(SUITE)
    options = ("-q", "-rX", "-p", "no:cacheprovider", "--strict-markers", "-W", "error::pytest.PytestWarning")
    done = python("-m", "pytest", *options, "--pyargs", "own_suite.test_own", PYTHONPATH=str(mutants_site))
    assert " passed, 2 xfailed in" in done.stdout, done.stdout + done.stderr


def test_pytest_is_asked_for_where_it_is_missing() -> None:
    block = "import sys; sys.modules['pytest'] = None; "
    wanted = 'the conformance kit needs pytest, which is not installed; run: pip install "paceline-core[testing]"'
    done = python("-c", block + "from paceline.testing import ProposerContract")
    assert f"PACELINE-E701: {wanted}" in done.stderr
    done = python("-c", block + "from paceline.cli import app; app(['plugins', 'check', 'lru'])")
    assert done.returncode == 1 and done.stderr.strip() == f"PACELINE-E701: {wanted}"


def test_a_class_without_a_plugin() -> None:
    with pytest.raises(KitError, match='names no plugin; set the class attribute: plugin = "my_idea"'):
        EvictionPolicyContract().load()
