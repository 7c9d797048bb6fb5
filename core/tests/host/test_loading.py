from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from paceline.api import API_VERSION, PacelineError, PluginError, ProposerCapabilities
from paceline.host.discovery import discover
from paceline.host.errors import (
    PluginApiError,
    PluginCallError,
    PluginConflictError,
    PluginImportError,
    PluginNeedError,
    PluginNotFoundError,
    PluginOptionsError,
    PluginSignatureError,
)
from paceline.host.loading import load
from paceline.host.report import list_rows
from paceline.host.selection import Selection

BROKEN = {
    "ImportError": "import no_such_module_anywhere\n",
    "SyntaxError": "def broken(:\n",
    "SystemExit": "raise SystemExit(3)\n",
    "AttributeError": "import math\nmath.no_such_function()\n",
}


def load_proposer(site, name="ngram", options=None, **kwargs):
    return load([Selection("proposer", name, options or {})], search_path=site.path, **kwargs).one("proposer")


def refused(site, error_class, name="ngram", **kwargs):
    with pytest.raises(error_class) as error:
        load_proposer(site, name, **kwargs)
    text = str(error.value)
    assert text.startswith(f"{error_class.code}: ")
    assert isinstance(error.value, PluginError)
    return text


@pytest.fixture(params=BROKEN)
def broken(request, site):
    site.proposer("good_a")
    site.add("paceline-bad", {"bad": "mod_bad"}, {"mod_bad": BROKEN[request.param]}, version="3.1")
    site.proposer("good_z")
    return request.param


def test_a_broken_plugin_that_nobody_names_is_never_imported(site, broken):
    for name in ("good_a", "good_z"):
        assert load_proposer(site, name).build(None).propose is not None

    assert "mod_bad" not in sys.modules
    rows = {row.name: row for row in list_rows(discover(site.path))}
    assert [*rows] == ["bad", "good_a", "good_z"]
    assert rows["bad"].version == "3.1"


def test_a_broken_plugin_that_is_named_stops_the_start(site, broken):
    text = refused(site, PluginImportError, "bad")

    assert 'plugin "bad" 3.1 (distribution paceline-bad, entry point "bad = mod_bad") cannot be imported' in text
    cause = "ModuleNotFoundError" if broken == "ImportError" else broken
    assert f"{cause}: " in text
    assert f"this core has paceline.api {API_VERSION}" in text


def test_an_object_that_the_module_lacks_is_an_import_error(site):
    site.add("paceline-bad", {"bad": "mod_bad:plugin"}, {"mod_bad": "x = 1\n"})

    assert "AttributeError: module 'mod_bad' has no attribute 'plugin'" in refused(site, PluginImportError, "bad")


def test_keyboard_interrupt_is_not_a_plugin_fault(site):
    site.add("paceline-bad", {"bad": "mod_bad"}, {"mod_bad": "raise KeyboardInterrupt\n"})

    with pytest.raises(KeyboardInterrupt):
        load_proposer(site, "bad")


def test_only_what_is_named_is_imported(site):
    for name in ("alpha", "bravo", "charlie"):
        site.proposer(name)

    load_proposer(site, "bravo")

    assert [name for name in ("mod_alpha", "mod_bravo", "mod_charlie") if name in sys.modules] == ["mod_bravo"]


def test_nothing_is_imported_before_every_name_is_resolved(site):
    site.proposer("good")

    with pytest.raises(PluginNotFoundError):
        load([Selection("proposer", "good"), Selection("observer", "gone")], search_path=site.path)

    assert "mod_good" not in sys.modules


def test_loaded_plugin_tells_where_it_comes_from(site):
    site.proposer("ngram", version="0.3")

    loaded = load_proposer(site, options={"ngram_max": 5})

    assert (loaded.name, loaded.distribution, loaded.version) == ("ngram", "paceline-ngram", "0.3")
    assert loaded.entry_point == "ngram = mod_ngram"
    assert loaded.describe(None) == ProposerCapabilities(max_tokens=5)
    assert load([], search_path=site.path).one("proposer") is None


@pytest.mark.parametrize("declared", ["''", "None", "'0'", "'garbage'", "'>>1'", "17"])
def test_api_range_that_is_none_or_garbage_is_refused_with_both_versions(site, declared):
    site.proposer("ngram", DECLARES_WITH.format(f"requires_api={declared}"))

    text = refused(site, PluginApiError)

    assert f"requires_api = {declared}" in text and "not a PEP 440 range" in text
    assert f"paceline.api {API_VERSION}" in text


def test_a_spec_without_api_range_is_refused_with_the_cause_and_the_version(site):
    source = "@hookimpl\ndef paceline_proposers():\n    return [ProposerSpec(name='ngram')]\n"
    site.proposer("ngram", source)

    text = refused(site, PluginCallError)

    assert "requires_api" in text and f"paceline_proposers (under paceline.api {API_VERSION}) raised TypeError" in text


@pytest.mark.parametrize(("declared", "version"), [(">=0.2", "0.1"), (">=1,<2", "0.1"), (">=0.1,<0.2", "1.0")])
def test_plugin_made_for_another_api_is_refused_with_both_versions(site, declared, version):
    site.proposer("ngram", DECLARES_WITH.format(f"requires_api='{declared}', describe=None, build=None"))

    text = refused(site, PluginApiError, api_version=version)

    assert 'plugin "ngram" 1.0 (distribution paceline-ngram, entry point "ngram = mod_ngram") needs' in text
    assert f'paceline.api "{declared}", this core has {version}' in text


@pytest.mark.parametrize("declared", [">=0.1,<0.2", f"=={API_VERSION}", "~=0.1", ">=0.1"])
def test_plugin_whose_api_range_fits_is_loaded(site, declared):
    site.proposer("ngram", DECLARES_WITH.format(f"requires_api='{declared}'"))

    assert load_proposer(site).spec.requires_api == declared


DECLARES_WITH = "@hookimpl\ndef paceline_proposers():\n    return [spec({})]\n"


def test_hook_with_an_extra_required_argument_is_refused(site):
    site.proposer("ngram", "@hookimpl\ndef paceline_proposers(engine):\n    return [spec()]\n")

    text = refused(site, PluginSignatureError)

    assert "Argument(s) {'engine'} are declared" in text and "distribution paceline-ngram" in text


def test_hook_that_nobody_specified_is_refused(site):
    site.proposer("ngram", "@hookimpl\ndef paceline_proposer():\n    return [spec()]\n")

    text = refused(site, PluginSignatureError)

    assert "unknown hook 'paceline_proposer'" in text and "the hooks, all without arguments: paceline_eviction" in text


def test_hook_wrapper_is_refused(site):
    site.proposer("ngram", "@hookimpl(wrapper=True)\ndef paceline_proposers():\n    return (yield)\n")

    assert "paceline_proposers is a wrapper" in refused(site, PluginSignatureError)


def test_forgotten_decorator_is_named(site):
    site.proposer("ngram", "def paceline_proposers():\n    return [spec()]\n")

    text = refused(site, PluginSignatureError)

    assert "declares nothing: paceline_proposers lacks the decorator @paceline.api.hookimpl" in text


def test_hook_that_raises_after_half_of_its_specs(site):
    site.proposer("ngram", "@hookimpl\ndef paceline_proposers():\n    yield spec()\n    raise KeyError('half')\n")

    text = refused(site, PluginCallError)
    assert f"paceline_proposers (under paceline.api {API_VERSION}) raised KeyError: 'half'" in text


def test_hook_that_returns_something_else(site):
    site.proposer("ngram", "@hookimpl\ndef paceline_proposers():\n    return ['ngram']\n")

    assert "paceline_proposers returned 'ngram', not a paceline.api.Spec" in refused(site, PluginSignatureError)


def test_spec_declared_twice(site):
    site.proposer("ngram", "@hookimpl\ndef paceline_proposers():\n    return [spec(), spec()]\n")

    assert 'declares proposer "ngram" twice' in refused(site, PluginSignatureError)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("options=dict", "options <class 'dict'> is not a pydantic model class"),
        ("options=BaseModel", "options is pydantic's BaseModel itself; give a subclass of it"),
        ("needs='hidden_states'", "needs 'hidden_states' is not a set of strings"),
        ("build=None", "build is None, which cannot be called"),
        ("describe=lambda options: None", "describe must take (options, target): too many positional arguments"),
        ("build=lambda options, context, extra: None", "missing a required argument: 'extra'"),
    ],
)
def test_spec_that_breaks_the_contract_is_refused(site, change, fault):
    site.proposer("ngram", DECLARES_WITH.format(change))

    assert fault in refused(site, PluginSignatureError)


def test_needs_are_held_against_what_the_engine_offers(site):
    site.proposer("eagle", DECLARES_WITH.format("needs=frozenset({'hidden_states', 'taps'})"), version="0.4.1")

    text = refused(site, PluginNeedError, "eagle", offers={"taps"})

    assert 'plugin "eagle" 0.4.1' in text
    assert 'needs capability "hidden_states", which this engine does not give (given: taps)' in text
    assert "choose another proposer" in text
    assert load_proposer(site, "eagle", offers={"hidden_states", "taps"}).name == "eagle"


def test_options_error_names_plugin_option_value_and_bound(site):
    site.proposer("ngram")

    text = refused(site, PluginOptionsError, options={"max_ngram": 99})

    assert 'plugin "ngram" 1.0 (distribution paceline-ngram' in text
    assert 'option "max_ngram" = 99: Input should be less than or equal to 16' in text


def test_unknown_option_is_refused_with_the_nearest_though_the_model_ignores_it(site):
    site.proposer("ngram")

    assert 'unknown option "max_ngrm" = 4; did you mean "max_ngram"?' in refused(
        site, PluginOptionsError, options={"max_ngrm": 4}
    )


def test_options_model_that_raises_is_the_plugins_fault(site):
    source = """
from pydantic import field_validator
class Broken(Options):
    @field_validator("max_ngram")
    def _check(cls, value):
        raise KeyError(value)
"""
    site.proposer("ngram", source + DECLARES_WITH.format("options=Broken"))

    text = refused(site, PluginCallError, options={"max_ngram": 4})

    assert 'plugin "ngram" 1.0' in text and ", options raised " in text


def test_module_whose_attributes_raise_is_the_plugins_fault(site):
    source = "class Odd:\n    def __dir__(self):\n        raise OSError('gone')\n\nodd = Odd()\n"
    site.add("paceline-odd", {"odd": "mod_odd:odd"}, {"mod_odd": source})

    assert "registration raised OSError: gone" in refused(site, PluginCallError, "odd")


def test_spec_of_another_name_is_addressed_after_a_colon(site):
    source = "@hookimpl\ndef paceline_proposers():\n    return [spec('slow'), spec('fast')]\n"
    site.proposer("pack", source)

    loaded = load_proposer(site, "pack:fast")

    assert (loaded.spec.name, loaded.name) == ("fast", "pack:fast")
    with pytest.raises(PluginNotFoundError, match='declares no proposer "pack"; it declares: proposer "pack:fast", pr'):
        load_proposer(site, "pack")


def test_plugin_of_another_kind_is_not_found(site):
    site.proposer("ngram")

    with pytest.raises(PluginNotFoundError, match='declares no observer "ngram"; it declares: proposer "ngram:ngram"'):
        load([Selection("observer", "ngram")], search_path=site.path)


def test_the_hooks_of_a_plugin_selected_twice_run_once(site):
    source = (
        "calls = []\n@hookimpl\ndef paceline_proposers():\n    calls.append(1)\n    return [spec('one'), spec('two')]\n"
    )
    site.proposer("pack", source)

    loaded = load([Selection("proposer", "pack:two"), Selection("proposer", "pack:one")], search_path=site.path)

    assert [item.name for item in loaded.all("proposer")] == ["pack:one", "pack:two"]
    assert sys.modules["mod_pack"].calls == [1]


OBSERVER = """
from pydantic import BaseModel
from paceline.api import Observer, ObserverCapabilities, ObserverSpec, hookimpl

class Options(BaseModel):
    pass

@hookimpl
def paceline_observers():
    yield ObserverSpec(
        name="NAME", summary="Watches.", options=Options, requires_api=">=0.1",
        describe=lambda options, target: ObserverCapabilities(), build=lambda options, context: Observer(),
    )
"""


def test_loaded_order_depends_neither_on_installation_nor_on_the_configuration(make_site, tmp_path, monkeypatch):
    import random

    names = ["echo", "alpha", "delta", "bravo", "charlie"]
    sites = [make_site(tmp_path / f"site{index}") for index in range(5)]
    for site, name in zip(sites, names, strict=True):
        site.add(f"paceline-{name}", {name: f"mod_{name}"}, {f"mod_{name}": OBSERVER.replace("NAME", name)})
        monkeypatch.syspath_prepend(str(site.folder))
    sites[0].proposer("zulu")
    orders = set()
    for seed in range(20):
        shuffler = random.Random(seed)
        path = shuffler.sample([site.path[0] for site in sites], 5)
        selections = [Selection("observer", name) for name in names] + [Selection("proposer", "zulu")]
        shuffler.shuffle(selections)
        orders.add(tuple(item.name for item in load(selections, search_path=path).items))
    for name in [*names, "zulu"]:
        sys.modules.pop(f"mod_{name}")

    assert orders == {("zulu", "alpha", "bravo", "charlie", "delta", "echo")}


BUILT = {
    "not derived": ("class Bad:\n    pass\n", "does not derive from paceline.api.Proposer; method propose is missing"),
    "extra argument": (
        "class Bad(Proposer):\n    def propose(self, batch, temperature):\n        return None\n",
        "propose must take (batch): missing a required argument: 'temperature'",
    ),
    "fewer arguments": (
        "class Bad(Silent):\n    def release(self, request_ids):\n        return None\n",
        "release must take (request_ids, reason): too many positional arguments",
    ),
    "not callable": ("class Bad(Silent):\n    observe = 3\n", "observe is 3, which cannot be called"),
    "removed": ("class Bad(Silent):\n    close = None\n", "method close is missing"),
    "coroutine": (
        "class Bad(Proposer):\n    async def propose(self, batch):\n        return None\n",
        "propose is a coroutine function",
    ),
}


@pytest.mark.parametrize("case", BUILT)
def test_object_that_breaks_the_contract_is_found_when_it_is_built(site, case):
    source, fault = BUILT[case]
    site.proposer("ngram", source + DECLARES_WITH.format("build=lambda options, context: Bad()"))
    loaded = load_proposer(site)

    with pytest.raises(PluginSignatureError) as error:
        loaded.build(None)

    assert fault in str(error.value) and 'plugin "ngram" 1.0' in str(error.value)
    assert "build returned an object of class Bad" in str(error.value)


def test_abstract_method_left_out_is_found_when_it_is_built(site):
    source = "class Bad(Proposer):\n    pass\n" + DECLARES_WITH.format("build=lambda options, context: Bad()")
    site.proposer("ngram", source)

    with pytest.raises(PluginCallError, match=r"ngram.*build raised TypeError: .*abstract.*propose"):
        load_proposer(site).build(None)


def test_describe_that_returns_something_else(site):
    site.proposer("ngram", DECLARES_WITH.format("describe=lambda options, target: {'max_tokens': 3}"))

    with pytest.raises(PluginSignatureError, match=r"describe returned dict, not paceline.api.ProposerCapabilities"):
        load_proposer(site).describe(None)


@pytest.mark.parametrize("hook", ["describe", "build"])
def test_exception_of_a_plugin_gets_its_name_version_and_hook(site, hook):
    site.proposer("ngram", DECLARES_WITH.format(f"{hook}=lambda options, _: 1 / 0"), version="0.7")

    with pytest.raises(PluginCallError) as error:
        getattr(load_proposer(site), hook)(None)

    assert str(error.value).startswith('PACELINE-E208: plugin "ngram" 0.7 (distribution paceline-ngram')
    assert f"{hook} raised ZeroDivisionError: division by zero" in str(error.value)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_typed_error_keeps_its_class_and_code_across_the_boundary(site):
    class ModelError(PacelineError):
        code = "PACELINE-E399"

    site.proposer("ngram")
    loaded = load_proposer(site)

    with pytest.raises(ModelError) as error, loaded.boundary("propose"):
        raise ModelError("no such file")

    assert str(error.value) == f"PACELINE-E399: {loaded.plugin}, propose: no such file"


def test_every_kind_of_plugin_loads_describes_and_builds(site):
    site.add("paceline-all", {"all_kinds": "mod_all"}, {"mod_all": ALL_KINDS})
    kinds = ["proposer", "observer", "controller", "cache_identity", "eviction_policy"]

    loaded = load([Selection(kind, "all_kinds") for kind in kinds], search_path=site.path)

    order = [item.kind.name for item in loaded.items]
    assert order == ["eviction_policy", "cache_identity", "controller", "proposer", "observer"]
    for item in loaded.items:
        assert isinstance(item.describe(None), item.kind.capabilities)
        assert isinstance(item.build(None), item.kind.base)


ALL_KINDS = """
from pydantic import BaseModel
from paceline import api

class Options(BaseModel):
    pass

class Policy(api.EvictionPolicy):
    def evictable(self, blocks): ...
    def not_evictable(self, block_ids): ...
    def removed(self, block_ids): ...
    def victims(self, count): return []

class Controller(api.SpeculationController):
    def budgets(self, state): return state.limits

class Drafter(api.Proposer):
    def propose(self, batch): return api.Drafts.empty(len(batch.requests))

def spec(capabilities, cls):
    return [api.Spec(
        name="all_kinds", summary="One of each.", options=Options, requires_api=">=0.1",
        describe=lambda options, target: capabilities, build=lambda options, context: cls(),
    )]

@api.hookimpl
def paceline_eviction_policies(): return spec(api.EvictionCapabilities(), Policy)
@api.hookimpl
def paceline_cache_identity(): return spec(api.IdentityCapabilities(), api.IdentityContributor)
@api.hookimpl
def paceline_speculation_controllers(): return spec(api.ControllerCapabilities(), Controller)
@api.hookimpl
def paceline_proposers(): return spec(api.ProposerCapabilities(max_tokens=1), Drafter)
@api.hookimpl
def paceline_observers(): return spec(api.ObserverCapabilities(), api.Observer)
"""


def test_spec_fields_are_replaceable_by_the_host_only(site):
    site.proposer("ngram")
    loaded = load_proposer(site)

    with pytest.raises(AttributeError):
        loaded.spec.name = "other"
    assert replace(loaded.spec, name="other").name == "other"


def test_conflict_is_a_plugin_error():
    assert issubclass(PluginConflictError, PluginError)
