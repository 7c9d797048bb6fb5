"""A plugin that raises stops the step with its name; no request, block or output of others is lost by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.host.errors import PluginCallError
from paceline.kv import invariants

GREEDY = SamplingParams(temperature=0.0, max_tokens=4)
PROMPTS = [{"prompt_token_ids": [index] * 20} for index in (3, 4)]
PLUGINS = {
    "propose": {"proposer": "engine_probes:recorder"},
    "observe": {"proposer": "engine_probes:recorder"},
    "release": {"proposer": "engine_probes:recorder"},
    "on_step": {"observers": [{"name": "engine_probes:watching"}]},
    "request_fields": {"cache_identity": [{"name": "engine_probes:tenant"}]},
}


@pytest.fixture
def raising(tiny: Callable[..., str], test_plugins: Any) -> Callable[[str], tuple[LLM, Any]]:
    """``hook -> (LLM with a plugin that raises in it, the plugin's object)``."""

    def build(hook: str) -> tuple[LLM, Any]:
        options: dict[str, Any] = {}
        for kind, named in PLUGINS[hook].items():
            if kind == "proposer":
                options |= {"proposer": named, "proposer_options": {"raises": hook}}
            else:
                options[kind] = [one | {"options": {"raises": hook}} for one in named]
        return LLM(tiny(), max_model_len=64, block_size=8, **options), test_plugins.built[-1]

    return build


@pytest.mark.parametrize("hook", PLUGINS)
def test_the_error_names_plugin_version_and_hook_and_everything_is_given_back(
    raising: Callable[[str], tuple[LLM, Any]], hook: str
) -> None:
    llm, plugin = raising(hook)
    with pytest.raises(PluginCallError) as error:
        llm.generate(PROMPTS, GREEDY)
    for named in ("paceline-engine-probes", "0.3", hook, "ZeroDivisionError: on purpose"):
        assert named in str(error.value)
    assert not llm.engine.has_requests and llm.engine.kv.num_used == 0
    invariants.check(llm.engine.kv)
    plugin.options.raises = ""
    assert [len(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY)] == [4, 4]
    llm.close()


@pytest.mark.parametrize("hook", ["propose", "observe", "release", "on_step"])
def test_the_requests_can_go_on_after_the_error(
    raising: Callable[[str], tuple[LLM, Any]], tiny: Callable[..., str], hook: str
) -> None:
    from paceline.engine.prompts import parse_prompt

    with LLM(tiny(), max_model_len=64) as plain:
        wanted = [output.outputs[0].token_ids for output in plain.generate(PROMPTS, GREEDY)]
    llm, plugin = raising(hook)
    ids = [llm.add_request(parse_prompt(prompt), GREEDY) for prompt in PROMPTS]
    emitted: dict[str, list[int]] = {request_id: [] for request_id in ids}
    num_errors = 0
    while llm.engine.has_requests:
        known = {request_id: output for request_id in ids if (output := _look(llm, request_id))}
        emitted |= {request_id: output.outputs[0].token_ids for request_id, output in known.items()}
        try:
            finished = llm.engine.step().finished
        except PluginCallError:
            num_errors += 1
            plugin.options.raises = ""
            finished = []
        emitted |= {output.request_id: output.outputs[0].token_ids for output in finished}
    assert num_errors == 1
    lost = hook == "release"  # it is told of requests that have ended, and the step's result goes with the error
    assert [len(tokens) for tokens in emitted.values()] == ([3, 3] if lost else [4, 4])
    assert [wanted[index][: len(tokens)] for index, tokens in enumerate(emitted.values())] == list(emitted.values())
    assert llm.engine.kv.num_used == 0
    llm.close()


def test_a_request_that_ended_in_the_step_of_the_error_is_gone(harness: Callable[..., Any], fake: Any) -> None:
    engine = harness(draft=fake.right_drafts)
    engine.add([1, 2], "ends", max_tokens=1)
    engine.add([3, 4], "stays", max_tokens=6)
    engine.proposer.observe = lambda committed: 1 / 0
    with pytest.raises(PluginCallError, match="observe raised ZeroDivisionError"):
        engine.engine.step()
    assert (engine.engine.num_running, engine.engine.stats.num_generated_tokens) == (1, 2)
    invariants.check(engine.kv)
    del engine.proposer.observe
    engine.run()
    assert [*engine.outputs] == ["stays"] and engine.tokens("stays") == fake.continuation([3, 4], 6)
    assert engine.kv.num_used == 0


def _look(llm: LLM, request_id: str) -> Any:
    try:
        return llm.engine.output(request_id)
    except KeyError:
        return None


def test_an_observer_is_closed_even_if_the_proposer_cannot_be(tiny: Callable[..., str], test_plugins: Any) -> None:
    options = {
        "proposer": "engine_probes:recorder",
        "proposer_options": {"raises": "close"},
        "observers": ["engine_probes:watching"],
    }
    llm = LLM(tiny(), max_model_len=64, **options)
    closed = []
    for built in test_plugins.built[-2:]:
        if isinstance(built, test_plugins.Watching):
            built.close = lambda: closed.append(1)
    with pytest.raises(PluginCallError, match="close raised ZeroDivisionError"):
        llm.close()
    assert closed == [1]


def test_trimming_by_a_plugin_changes_no_token(tiny: Callable[..., str], test_plugins: Any) -> None:
    with LLM(tiny(), max_model_len=64) as plain:
        truth = [o.prompt_token_ids + o.outputs[0].token_ids for o in plain.generate(PROMPTS, GREEDY)]
    options = {
        "proposer": "engine_probes:recorder",
        "proposer_options": {"truth": truth},
        "controller": "engine_probes:trimming",
    }
    with LLM(tiny(), max_model_len=64, **options, controller_options={"kept": 1}) as llm:
        outputs = llm.generate(PROMPTS, GREEDY)
    assert [output.prompt_token_ids + output.outputs[0].token_ids for output in outputs] == truth
    assert [(o.metrics.num_draft_tokens, o.metrics.num_accepted_tokens) for o in outputs] == [(1, 1), (1, 1)]
