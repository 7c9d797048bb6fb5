from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.engine import EngineConfig
from paceline.config.errors import ConfigError
from paceline.config.sources import resolve

WHOLE = """\
model: {name: m, tokenizer: t, revision: r, trust_remote_code: false, dtype: half, quantization: int8}
engine:
  device: cpu
  numerics: exact
  max_model_len: 64
  max_num_seqs: 2
  max_num_batched_tokens: 32
  gpu_memory_utilization: 0.5
  enable_chunked_prefill: true
  seed: 7
speculation: {proposer: p, num_speculative_tokens: 3, options: {a: 1}, controller: c, controller_options: {b: 2}}
cache:
  block_size: 8
  num_gpu_blocks_override: 9
  enable_prefix_caching: false
  eviction_policy: e
  eviction_policy_options: {d: 3}
plugins:
  cache_identity: [tenant]
  constraints: [grammars]
  observers:
  - name: log
    options: {path: x}
"""


def origins(result):
    return {name: str(origin) for name, _, origin in result.rows()}


# -- precedence ------------------------------------------------------------------------------------------------------


def test_without_any_source_everything_is_a_default(folder: Path):
    result = resolve({}, None, {})

    assert result.config == EngineConfig(model="demo") and result.file is None
    assert set(origins(result).values()) == {"default"}
    assert origins(result).keys() == EngineConfig.model_fields.keys()


def test_a_file_can_say_everything(resolved):
    result = resolved(WHOLE)

    assert result.config == EngineConfig(
        model="m",
        tokenizer="t",
        revision="r",
        dtype="float16",
        quantization="int8",
        device="cpu",
        numerics="exact",
        max_model_len=64,
        max_num_seqs=2,
        max_num_batched_tokens=32,
        gpu_memory_utilization=0.5,
        seed=7,
        proposer="p",
        num_speculative_tokens=3,
        proposer_options={"a": 1},
        controller="c",
        controller_options={"b": 2},
        block_size=8,
        num_gpu_blocks_override=9,
        enable_prefix_caching=False,
        eviction_policy="e",
        eviction_policy_options={"d": 3},
        cache_identity=["tenant"],
        constraints=["grammars"],
        observers=[{"name": "log", "options": {"path": "x"}}],
    )
    left = {name for name, origin in origins(result).items() if origin == "default"}
    assert left == {"kv_cache_memory_bytes", "plugin_policy"}


@pytest.mark.parametrize(
    ("file", "environment", "command_line", "value", "origin"),
    [
        (0, 0, 0, 16, "default"),
        (3, 0, 0, 3, "paceline.yaml:2"),
        (0, 4, 0, 4, "environment variable PACELINE_MAX_NUM_SEQS"),
        (3, 4, 0, 4, "environment variable PACELINE_MAX_NUM_SEQS"),
        (0, 0, 5, 5, "command line"),
        (3, 0, 5, 5, "command line"),
        (0, 4, 5, 5, "command line"),
        (3, 4, 5, 5, "command line"),
    ],
)
def test_command_line_over_environment_over_file_over_default(resolved, file, environment, command_line, value, origin):
    result = resolved(
        f"engine:\n  max_num_seqs: {file}" if file else "",
        {"PACELINE_MAX_NUM_SEQS": str(environment)} if environment else {},
        **({"max_num_seqs": command_line} if command_line else {}),
    )

    assert (result.config.max_num_seqs, origins(result)["max_num_seqs"]) == (value, origin)


def test_options_of_one_plugin_are_merged_and_each_has_its_origin(resolved):
    result = resolved(
        "speculation:\n  proposer: p\n  options:\n    a: 1\n    b: 1\n    c: 1\n",
        {"PACELINE_PROPOSER_OPTIONS": '{"b": 2, "c": 2}'},
        proposer="p",
        proposer_options={"c": 3},
    )

    assert result.config.proposer_options == {"a": 1, "b": 2, "c": 3}
    assert {name: origin for name, origin in origins(result).items() if "." in name} == {
        "proposer_options.a": "paceline.yaml:4",
        "proposer_options.b": "environment variable PACELINE_PROPOSER_OPTIONS",
        "proposer_options.c": "command line",
    }


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("speculation: {proposer: p, options: {a: 1}}", "proposer", "proposer_options"),
        ("speculation: {controller: p, controller_options: {a: 1}}", "controller", "controller_options"),
        ("cache: {eviction_policy: p, eviction_policy_options: {a: 1}}", "eviction_policy", "eviction_policy_options"),
    ],
)
def test_another_plugin_does_not_inherit_the_options(resolved, text, name, options):
    assert getattr(resolved(text).config, options) == {"a": 1}
    result = resolved(text, **{name: "q", options: {"b": 2}})
    assert getattr(result.config, options) == {"b": 2}
    assert f"{options}.a" not in origins(result)


def test_options_for_the_default_plugin_stay_when_it_is_named(resolved):
    result = resolved("cache: {eviction_policy_options: {a: 1}}", eviction_policy="lru")

    assert result.config.eviction_policy_options == {"a": 1}


@pytest.mark.parametrize("off", [{"proposer": "none"}, {"proposer": None}])
def test_speculation_of_the_file_can_be_switched_off(resolved, off):
    text = "speculation: {proposer: p, num_speculative_tokens: 2, options: {a: 1}}"

    assert resolved(text, **off).config == EngineConfig(model="demo")
    assert resolved(text, {"PACELINE_PROPOSER": "none"}).config == EngineConfig(model="demo")


def test_a_kv_size_overrules_the_other_kind_of_kv_size(resolved):
    config = resolved("cache: {num_gpu_blocks_override: 8}", kv_cache_memory_bytes=4096).config

    assert (config.num_gpu_blocks_override, config.kv_cache_memory_bytes) == (None, 4096)


def test_names_of_other_engines_work_on_the_command_line(resolved):
    result = resolved("speculation: {proposer: p}", speculative_config={"method": "q", "k": 1}, swap_space=4)

    assert (result.config.proposer, result.config.proposer_options) == ("q", {"k": 1})
    assert origins(result)["proposer"] == origins(result)["proposer_options.k"] == "command line"


# -- which file ------------------------------------------------------------------------------------------------------


def test_the_named_file_wins_over_the_variable_over_the_working_directory(folder: Path):
    for index, name in enumerate(("named", "variable", "paceline"), 1):
        (folder / f"{name}.yaml").write_text(f"engine: {{seed: {index}}}")
    variable = {"PACELINE_CONFIG": "variable.yaml"}

    assert resolve({}, Path("named.yaml"), variable).config.seed == 1
    assert resolve({}, None, variable).config.seed == 2
    assert resolve({}, None, {"PACELINE_CONFIG": ""}).config.seed == 3
    assert resolve({}, None, {}).file == Path("paceline.yaml")


@pytest.mark.parametrize(("named", "variables"), [("no.yaml", {}), (None, {"PACELINE_CONFIG": "no.yaml"})])
def test_a_named_file_must_be_there(folder: Path, named, variables):
    with pytest.raises(ConfigError, match=r"configuration file no\.yaml cannot be read: No such file"):
        resolve({}, named and Path(named), variables)


def test_a_file_that_merely_lies_there_runs_no_code(folder: Path, refusal):
    text = "model:\n  trust_remote_code: true\n"

    assert refusal(text) == (
        "paceline.yaml:2: model.trust_remote_code = True counts only in a file that is named; if you trust this "
        "file, give --config paceline.yaml or set PACELINE_CONFIG"
    )
    assert resolve({}, Path("paceline.yaml"), {}).config.trust_remote_code
    assert resolve({}, None, {"PACELINE_CONFIG": "paceline.yaml"}).config.trust_remote_code


# -- the environment -------------------------------------------------------------------------------------------------


def test_variables_are_read_as_their_fields_need(resolved):
    variables = {
        "PACELINE_MODEL": "m",
        "PACELINE_REVISION": "7",
        "PACELINE_GPU_MEMORY_UTILIZATION": "0.5",
        "PACELINE_ENABLE_PREFIX_CACHING": "false",
        "PACELINE_OBSERVERS": '["log", {"name": "n", "options": {"a": 1}}]',
        "PACELINE_NUMERICS": "exact",
        "PACELINE_SEED": "",
    }

    assert resolved(environ=variables).config == EngineConfig(
        model="m",
        revision="7",
        gpu_memory_utilization=0.5,
        enable_prefix_caching=False,
        observers=["log", {"name": "n", "options": {"a": 1}}],
        numerics="exact",
    )


@pytest.mark.parametrize("variable", ["PACELINE_PORT", "PACELINE_SERVICE_HOST", "PACELINE_CACHE", "PACELINE_CHECK"])
def test_variables_of_others_are_left_alone(resolved, variable):
    assert resolved(environ={variable: "tcp://10.0.0.1:80"}).config == EngineConfig(model="demo")


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("PACELINE_MAX_NUM_SEQ", "PACELINE_MAX_NUM_SEQS"),
        ("PACELINE_BLOCKSIZE", "PACELINE_BLOCK_SIZE"),
        ("PACELINE_CONFIGS", "PACELINE_CONFIG"),
    ],
)
def test_a_misspelled_variable_is_refused(refusal, variable, meant):
    assert refusal(environ={variable: "4"}) == f"environment variable {variable} is unknown; did you mean {meant}?"


# -- values that are refused -----------------------------------------------------------------------------------------


def test_a_value_is_refused_with_its_place(refusal):
    bound = "Input should be greater than or equal to 1"

    assert refusal("engine:\n\n  max_num_seqs: 0\n") == f"paceline.yaml:3: engine.max_num_seqs = 0: {bound}"
    assert refusal(environ={"PACELINE_MAX_NUM_SEQS": "0"}) == (
        f"environment variable PACELINE_MAX_NUM_SEQS: max_num_seqs = 0: {bound}"
    )
    assert refusal(max_num_seqs=0) == f"command line: max_num_seqs = 0: {bound}"


def test_every_fault_of_a_file_is_named(refusal):
    message = refusal("engine:\n  seed: x\ncache:\n  block_size: 0\n")

    assert "paceline.yaml:2: engine.seed = 'x': " in message and "paceline.yaml:4: cache.block_size = 0: " in message


def test_values_that_do_not_fit_together_are_refused_with_their_places(refusal):
    message = refusal("engine:\n  max_num_batched_tokens: 8\n", max_num_seqs=9)

    assert message.endswith("(max_num_batched_tokens from paceline.yaml:2, max_num_seqs from command line)")


def test_arguments_of_the_command_line_are_refused_by_the_table(refusal):
    assert "an engine drives one device" in refusal(tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("nearby", "variable", "option", "value", "origin"),
    [
        (False, "", None, None, "default"),
        (True, "", None, "paceline-plugins.toml", "the working directory"),
        (True, "12", None, "12", "environment variable PACELINE_PLUGIN_POLICY"),
        (True, "a.toml", "b.toml", "b.toml", "command line"),
    ],
)
def test_the_plugin_policy_comes_from_option_variable_or_working_directory(
    resolved, folder: Path, nearby, variable, option, value, origin
):
    if nearby:
        (folder / "paceline-plugins.toml").touch()
    given = {} if option is None else {"plugin_policy": Path(option)}
    result = resolved("", {"PACELINE_PLUGIN_POLICY": variable}, **given)
    assert result.config.plugin_policy == value
    assert str(result.origins.get("plugin_policy", "default")) == origin
