"""Failures of plugin loading: one broken plugin that takes the program, or other plugins, with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline import LLM, RequestOutput, SamplingParams
from paceline.api import PluginError
from paceline.cli import app

GREEDY = SamplingParams(temperature=0.0, max_tokens=6)
PROMPT = [3, 1, 4, 1, 5]

PROPOSER = """
from pydantic import BaseModel
from paceline.api import Drafts, Proposer, ProposerCapabilities, ProposerSpec, hookimpl

class Options(BaseModel):
    pass

class Zeros(Proposer):
    def propose(self, batch):
        return Drafts.from_lists([[0] * budget for budget in batch.budgets.tolist()])

def spec(name):
    return ProposerSpec(
        name=name, summary="Drafts zeros.", options=Options, requires_api=">=0.1",
        describe=lambda options, target: ProposerCapabilities(max_tokens=4), build=lambda options, context: Zeros(),
    )
"""
GOOD_A = (
    PROPOSER
    + """
@hookimpl
def paceline_proposers():
    return [spec("good_a")]
"""
)
GOOD_Z = """
from pydantic import BaseModel
from paceline.api import IdentityCapabilities, IdentityContributor, IdentityContributorSpec, hookimpl

ASKED = []

class Options(BaseModel):
    pass

class Asked(IdentityContributor):
    def request_fields(self, request):
        ASKED.append(request.request_id)
        return {}

@hookimpl
def paceline_cache_identity():
    return [IdentityContributorSpec(
        name="good_z", summary="Notes what it is asked.", options=Options, requires_api=">=0.1",
        describe=lambda options, target: IdentityCapabilities(), build=lambda options, context: Asked(),
    )]
"""
BROKEN = {
    "ImportError": "raise ImportError('no such library')\n",
    "SyntaxError": "def broken(:\n",
    "SystemExit": "raise SystemExit(3)\n",
    "AttributeError": "import math\nmath.no_such_function()\n",
    "RuntimeError": PROPOSER
    + """
@hookimpl
def paceline_proposers():
    yield spec("bad")
    raise RuntimeError("half way")
""",
}


@pytest.fixture(params=BROKEN)
def broken(request: pytest.FixtureRequest, site: Any) -> str:
    """Three distributions, the one in the middle broken; gives the name of its error."""
    site.add("paceline-good-a", "good_a", GOOD_A)
    site.add("paceline-bad", "bad", BROKEN[request.param], version="3.1")
    site.add("paceline-good-z", "good_z", GOOD_Z)
    return request.param


@pytest.fixture
def check_good_ones(tiny: Callable[..., str], serve: Callable[..., list[RequestOutput]]) -> Callable[[], None]:
    """Starts an engine with both good plugins and sees them work."""

    def check() -> None:
        with LLM(tiny(), max_model_len=64, proposer="good_a", cache_identity=["good_z"]) as llm:
            output = serve(llm, [PROMPT], GREEDY)[0]
            assert len(output.outputs[0].token_ids) == 6
            assert output.metrics.num_draft_tokens > 0
            assert output.request_id in sys.modules["mod_good_z"].ASKED
            assert [line for line in llm.plugins if "good" in line] == [
                "cache identity contributor good_z (paceline-good-z 1.0)",
                "proposer good_a (paceline-good-a 1.0)",
            ]

    return check


def test_a_broken_plugin_that_is_not_named_disturbs_nobody(
    broken: str, check_good_ones: Callable[[], None], recwarn: pytest.WarningsRecorder
) -> None:
    """B074: it is listed, and never imported."""
    check_good_ones()
    listed = CliRunner().invoke(app, ["plugins", "list", "--json"])
    assert listed.exit_code == 0
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert {"good_a", "bad", "good_z"} <= rows.keys()
    assert (rows["bad"]["distribution"], rows["bad"]["version"]) == ("paceline-bad", "3.1")
    assert "mod_bad" not in sys.modules
    assert not recwarn.list


def test_a_broken_plugin_that_is_named_stops_the_start(
    broken: str, tiny: Callable[..., str], check_good_ones: Callable[[], None]
) -> None:
    """B074: the error says whose fault it is, and nothing half registered stays behind."""
    with pytest.raises(PluginError) as error:
        LLM(tiny(), max_model_len=64, proposer="bad", cache_identity=["good_z"])
    for part in ('plugin "bad" 3.1', "distribution paceline-bad", 'entry point "bad = mod_bad"', broken):
        assert part in str(error.value)
    check_good_ones()


def test_the_command_line_fails_and_says_why(broken: str, tiny: Callable[..., str]) -> None:
    """B074."""
    result = CliRunner().invoke(app, ["generate", "-m", tiny(), "--proposer", "bad", "Hello"])
    assert result.exit_code == 1
    assert 'plugin "bad" 3.1 (distribution paceline-bad, entry point "bad = mod_bad")' in result.stderr
    assert broken in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    listed = CliRunner().invoke(app, ["plugins", "list", "--load", "bad", "--load", "good_a", "--json"])
    assert listed.exit_code == 1
    states = {row["name"]: row["state"] for row in json.loads(listed.stdout)}
    assert (states["good_a"], states["bad"], states["good_z"]) == ("ready", "refused", "installed")
