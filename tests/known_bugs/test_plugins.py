"""Failures of plugin loading, under each mode of the plugin policy: a broken plugin that takes the program or other
plugins with it, one plugin seen twice, two under one name, an order that differs, a plugin made for another core."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline import LLM, RequestOutput, SamplingParams
from paceline.api import ENTRY_POINT_GROUP, PluginError, RequestFacts
from paceline.cli import app
from paceline.host.discovery import InstalledPlugin, discover
from paceline.host.integrity import checked_digest
from paceline.host.loading import load
from paceline.host.lock_file import LockedPlugin, lock_text
from paceline.host.locking import lock_plugins
from paceline.host.policy_file import PluginPolicy
from paceline.host.selection import Selection
from paceline.kv.identity import CoreIdentity, IdentityBuilder

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

def spec(name, requires_api=">=0.1"):
    return ProposerSpec(
        name=name, summary="Drafts zeros.", options=Options, requires_api=requires_api,
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


@pytest.fixture(params=["open", "allow", "locked"])
def put_in_force(
    request: pytest.FixtureRequest,
    site: Any,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., str]:
    """``(*distributions) -> mode``: a policy of each mode that lets these run, as they are installed now."""

    def put(*distributions: str) -> str:
        folder = tmp_path_factory.mktemp("policy")
        allow = f"allow = {list(distributions)!r}\n" if request.param == "allow" else ""
        (folder / "policy.toml").write_text(f'mode = "{request.param}"\n{allow}')
        if request.param == "locked":
            plugins = [plugin for plugin in discover(site.path) if plugin.distribution in distributions]
            (folder / "paceline.lock").write_text(lock_text(map(_locked, plugins)))
        for module in site.modules:
            sys.modules.pop(module, None)
        monkeypatch.setenv("PACELINE_PLUGIN_POLICY", str(folder / "policy.toml"))
        return request.param

    return put


def _locked(plugin: InstalledPlugin) -> LockedPlugin:
    """What a lock says of a plugin, also of one that no lock would take because it is broken."""
    try:
        return lock_plugins([plugin], [plugin.name], PluginPolicy())[0]
    except PluginError:
        return LockedPlugin(
            name=plugin.name,
            distribution=plugin.distribution,
            version=plugin.version,
            group=ENTRY_POINT_GROUP,
            value=plugin.value,
            requires_api=(">=0.1",),
            kinds=("proposer",),
            needs=(),
            hash=checked_digest(plugin),
        )


@pytest.fixture(params=BROKEN)
def broken(request: pytest.FixtureRequest, site: Any, put_in_force: Callable[..., str]) -> str:
    """Three distributions, the one in the middle broken, all of which may run; gives the name of its error."""
    site.add("paceline-good-a", "good_a", GOOD_A)
    site.add("paceline-bad", "bad", BROKEN[request.param], version="3.1")
    site.add("paceline-good-z", "good_z", GOOD_Z)
    put_in_force("paceline-good-a", "paceline-bad", "paceline-good-z")
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


def with_name(name: str, requires_api: str = "'>=0.1'") -> str:
    """The source of a proposer."""
    return f'{PROPOSER}\n@hookimpl\ndef paceline_proposers():\n    return [spec("{name}", {requires_api})]\n'


def start(site: Any, *names: str, kind: str = "proposer") -> Any:
    return load([Selection(kind, name) for name in names], search_path=site.path)


def test_what_is_seen_twice_is_loaded_once(site: Any, put_in_force: Callable[..., str], tmp_path: Path) -> None:
    """B076: the folder, a link to it, and the same distribution once more as an editable install behind it."""
    site.add("paceline-parrot", "parrot", with_name("parrot"))
    link, editable = tmp_path / "lib64", tmp_path / "editable"
    link.symlink_to(site.folder)
    info = shutil.copytree(site.folder / "paceline_parrot-1.0.dist-info", editable / "paceline_parrot-1.0.dist-info")
    (info / "direct_url.json").write_text('{"url": "file:///src", "dir_info": {"editable": true}}')
    put_in_force("paceline-parrot")

    path = [*site.path, str(link), str(editable)]
    assert [plugin.name for plugin in discover(path)] == ["parrot"]
    assert len(load([Selection("proposer", "parrot")], search_path=path).items) == 1


@pytest.mark.parametrize("name", ["parrot", "lru"])
def test_two_under_one_name_are_an_error_that_names_both(
    site: Any, put_in_force: Callable[..., str], name: str
) -> None:
    """B076: two strangers, and a stranger under the name of a plugin of the core."""
    owner = "paceline-core" if name == "lru" else "alpha-drafts"
    if name == "parrot":
        site.add("alpha-drafts", "parrot", with_name("parrot"))
    mode = put_in_force("alpha-drafts")
    site.add("beta-drafts", name, with_name(name))

    with pytest.raises(PluginError) as error:
        load([Selection("proposer", name)])
    code = "PACELINE-E216" if mode == "locked" and name == "parrot" else "PACELINE-E202"
    assert error.value.code == code
    assert owner in str(error.value) and "beta-drafts" in str(error.value)
    assert f"mod_{name}" not in sys.modules


def test_the_configuration_may_pick_one_of_two(site: Any, put_in_force: Callable[..., str]) -> None:
    """B076."""
    site.add("alpha-drafts", "parrot", with_name("parrot"))
    mode = put_in_force("alpha-drafts")
    site.add("beta-drafts", "parrot", with_name("parrot"))

    assert start(site, "alpha-drafts/parrot").one("proposer").distribution == "alpha-drafts"
    if mode == "open":
        assert start(site, "beta-drafts/parrot").one("proposer").distribution == "beta-drafts"
    else:
        with pytest.raises(PluginError, match=r"PACELINE-E21[26].*beta-drafts"):
            start(site, "beta-drafts/parrot")


CONTRIBUTORS = ["delta", "alpha", "echo", "bravo", "charlie"]


def contributor(name: str) -> str:
    return (
        GOOD_Z.replace("good_z", name)
        .replace("return {}", f'return {{"by": "{name}"}}')
        .replace(
            "def request_fields",
            f'def model_fields(self):\n        return {{"of": "{name}"}}\n\n    def request_fields',
        )
    )


def test_order_and_keys_do_not_depend_on_the_order_of_installing(site: Any, put_in_force: Callable[..., str]) -> None:
    """B077: five contributors to the cache identity, named, installed and found in 20 orders."""
    core = CoreIdentity(
        weights_fingerprint="w",
        tokenizer_fingerprint="t",
        rope="r",
        attention="a",
        kv_dtype="float32",
        kv_layout="l",
        block_size=4,
        numerics="fast",
        numerics_facts="",
    )
    request, tokens = RequestFacts(request_id="1", num_prompt_tokens=4), np.arange(4)
    orders, keys = set(), set()
    for seed in range(20):
        names = random.Random(seed).sample(CONTRIBUTORS, k=len(CONTRIBUTORS))
        shutil.rmtree(site.folder)
        site.folder.mkdir()
        for name in names:
            site.add(f"paceline-{name}", name, contributor(name))
        put_in_force(*(f"paceline-{name}" for name in names))
        loaded = start(site, *names, kind="cache_identity").all("cache_identity")
        identity = IdentityBuilder(core, [(plugin.name, plugin.build(None)) for plugin in loaded])
        orders.add(tuple(plugin.name for plugin in loaded))
        keys.add(identity.key(identity.root(request), request, tokens, 0))

    assert orders == {tuple(sorted(CONTRIBUTORS))}
    assert len(keys) == 1


@pytest.mark.parametrize("declared", ["'2'", "'>=1,<2'", "'0'", "None", "'garbage'"])
def test_a_plugin_for_another_api_is_refused_at_start(
    site: Any, put_in_force: Callable[..., str], declared: str
) -> None:
    """B078: the message gives both versions; what no core can read as a range is refused as well, and never locked."""
    site.add("paceline-parrot", "parrot", with_name("parrot", declared))
    mode = put_in_force("paceline-parrot")

    with pytest.raises(PluginError) as error:
        start(site, "parrot")
    assert error.value.code == ("PACELINE-E219" if mode == "locked" else "PACELINE-E204")
    with pytest.raises(PluginError, match=r"PACELINE-E204.*0\.1"):
        lock_plugins(discover(site.path), ["parrot"], PluginPolicy())
    for part in ('plugin "parrot" 1.0', declared.strip("'"), "0.1"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("def propose(self, batch):", "def suggest(self, batch):"),
        ("def propose(self, batch):", "def propose(self, batch, more):"),
        ("class Zeros(Proposer):", "class Zeros:"),
    ],
)
def test_an_object_of_another_form_is_refused_when_it_is_built(
    site: Any, put_in_force: Callable[..., str], right: str, wrong: str
) -> None:
    """B078: a missing method, an argument too many, a class of its own: before any request."""
    site.add("paceline-parrot", "parrot", with_name("parrot").replace(right, wrong))
    put_in_force("paceline-parrot")

    proposer = start(site, "parrot").one("proposer")
    with pytest.raises(PluginError, match=r'PACELINE-E20[68]: plugin "parrot" 1\.0'):
        proposer.build(None)


def test_a_plugin_for_this_api_works(site: Any, put_in_force: Callable[..., str]) -> None:
    """B078."""
    site.add("paceline-parrot", "parrot", with_name("parrot", "'>=0.1,<0.2'"))
    put_in_force("paceline-parrot")

    assert start(site, "parrot").one("proposer").build(None).propose is not None
