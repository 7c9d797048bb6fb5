from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from paceline.config import ConfigError, EngineConfig, engine_config
from paceline.config.argument import Effect
from paceline.config.arguments import ARGUMENTS, SPECULATIVE_KEYS
from paceline.config.page import as_markdown

PAGE = Path(__file__).parents[3] / "docs" / "engine_arguments.md"
BEGIN, END = "<!-- begin: paceline config arguments -->\n", "<!-- end -->"

ROWS = [row for rows in ARGUMENTS.values() for row in rows]
IDLE = [row for row in ROWS if row.effect is not Effect.HONOURED]
DEFAULT = EngineConfig(model="m")
HONOURED = {
    "tokenizer": ("t", {"tokenizer": "t"}),
    "revision": ("r", {"revision": "r"}),
    "trust_remote_code": (True, {"trust_remote_code": True}),
    "dtype": ("half", {"dtype": "float16"}),
    "quantization": ("int8", {"quantization": "int8"}),
    "seed": (3, {"seed": 3}),
    "max_model_len": (64, {"max_model_len": 64}),
    "block_size": (32, {"block_size": 32}),
    "gpu_memory_utilization": (0.5, {"gpu_memory_utilization": 0.5}),
    "kv_cache_memory_bytes": (4096, {"kv_cache_memory_bytes": 4096}),
    "num_gpu_blocks_override": (9, {"num_gpu_blocks_override": 9}),
    "enable_prefix_caching": (False, {"enable_prefix_caching": False}),
    "max_num_seqs": (4, {"max_num_seqs": 4}),
    "max_num_batched_tokens": (64, {"max_num_batched_tokens": 64}),
    "device": ("cpu", {"device": "cpu"}),
    "speculative_config": ({"method": "p", "k": 1}, {"proposer": "p", "proposer_options": {"k": 1}}),
    "spec_method": ("p", {"proposer": "p"}),
    "speculative_model": ("[p]", {"proposer": "p"}),
}
WITH_A_METHOD = {"spec_model": {"proposer_options": {"model": "d"}}, "spec_tokens": {"num_speculative_tokens": 3}}


def refused(**arguments: object) -> str:
    with pytest.raises(ConfigError) as error:
        engine_config("m", **arguments)
    assert error.value.code == "PACELINE-E101"
    return error.value.message


# -- the table -------------------------------------------------------------------------------------------------------


def test_the_page_is_what_the_table_prints():
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)

    assert head.startswith("# ") and rest.partition(END)[0] == as_markdown(), (
        f"put the output of `paceline config arguments` between the markers of {PAGE.name}"
    )


def test_each_argument_has_one_row_with_a_reason():
    for rows in (ROWS, SPECULATIVE_KEYS):
        assert max(Counter(row.name for row in rows).values()) == 1
        assert [row.name for row in rows if len(row.note) < 5 or "|" in row.note] == []


def test_the_arguments_known_by_heart_are_there():
    names = {row.name for row in ROWS}
    assert names >= {
        *("model", "tokenizer", "dtype", "quantization", "revision", "seed", "gpu_memory_utilization", "enforce_eager"),
        *("tensor_parallel_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"),
        *("enable_prefix_caching", "enable_chunked_prefill", "speculative_config", "kv_transfer_config"),
        *("disable_log_stats", "logits_processors", "spec_method", "spec_model", "spec_tokens", "swap_space"),
        *("use_v2_block_manager", "num_gpu_blocks_override", "kv_cache_memory_bytes", "kv_cache_dtype", "load_format"),
        *("scheduling_policy", "async_scheduling", "kv_events_config", "kv_offloading_size", "attention_backend"),
        *("prefix_caching_hash_algo", "pipeline_parallel_size", "scheduler_cls", "generation_config"),
    }


def test_a_field_is_never_refused_nor_ignored_but_for_chunked_prefill():
    assert {row.name for row in IDLE} & EngineConfig.model_fields.keys() == {"enable_chunked_prefill"}


def test_every_honoured_argument_is_tried_here():
    tried = HONOURED.keys() | WITH_A_METHOD.keys() | {"model", "num_speculative_tokens"}
    assert tried == {row.name for row in ROWS if row.effect is Effect.HONOURED}


# -- what becomes of them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HONOURED)
def test_an_honoured_argument_reaches_its_field(name):
    value, fields = HONOURED[name]

    assert engine_config("m", **{name: value}) == EngineConfig(model="m", **fields) != DEFAULT


@pytest.mark.parametrize("name", WITH_A_METHOD)
def test_an_honoured_argument_beside_a_method_reaches_its_field(name):
    value = {"spec_model": "d", "spec_tokens": 3}[name]

    assert engine_config("m", spec_method="p", **{name: value}) == EngineConfig(
        model="m", proposer="p", **WITH_A_METHOD[name]
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_none_is_as_if_not_given(row):
    if row.name != "model":
        assert engine_config("m", **{row.name: None}) == DEFAULT


@pytest.mark.parametrize("row", IDLE, ids=lambda row: row.name)
def test_a_value_that_asks_for_nothing_changes_nothing(row):
    values = [object(), True, 4, "x"] if row.inert is None else row.inert

    for value in values:
        assert engine_config("m", **{row.name: value}) == DEFAULT


@pytest.mark.parametrize("row", [row for row in IDLE if row.inert is not None], ids=lambda row: row.name)
def test_a_value_that_asks_for_something_is_refused_with_the_reason(row):
    message = refused(**{row.name: "something"})

    assert message.startswith(f'engine configuration: option "{row.name}" = ')
    assert f" is refused: {row.note}; leave it out" in message
    assert all(repr(inert) in message for inert in row.inert)


def test_two_devices_are_refused_and_one_is_not():
    assert engine_config("m", tensor_parallel_size=1) == DEFAULT
    assert refused(tensor_parallel_size=2) == (
        'engine configuration: option "tensor_parallel_size" = 2 is refused: an engine drives one device from one '
        "process; start one engine for each device; leave it out or give 1"
    )
    assert "tensor_parallel_size" in refused(tensor_parallel_size=True)


def test_every_refused_argument_is_named_at_once():
    message = refused(tensor_parallel_size=2, enable_lora=True)

    assert '"tensor_parallel_size"' in message and '"enable_lora"' in message


def test_a_token_is_not_shown():
    assert "hf_secret" not in refused(hf_token="hf_secret")


def test_a_torch_dtype_is_taken_by_its_name():
    import torch

    assert engine_config("m", dtype=torch.bfloat16).dtype == "bfloat16"
    assert EngineConfig(model="m", dtype="float").dtype == "float32"
    assert "= 'int8': Input should be 'auto', 'float32'" in refused(dtype=torch.int8)


# -- unknown ones ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("max_model_length", "max_model_len"),
        ("tensor_paralel_size", "tensor_parallel_size"),
        ("enforce_eagre", "enforce_eager"),
        ("speculative_cfg", "speculative_config"),
        ("num_gpu_block_override", "num_gpu_blocks_override"),
    ],
)
def test_an_unknown_argument_is_refused_with_the_nearest_of_either_engine(name, near):
    assert refused(**{name: 1}) == f'engine configuration: unknown option "{name}" = 1; did you mean "{near}"?'


def test_what_is_near_nothing_gets_the_list_of_our_own():
    message = refused(qwertz=1)

    assert "; known: block_size, cache_identity, " in message and "swap_space" not in message


# -- keys of speculative_config --------------------------------------------------------------------------------------


def test_keys_of_speculation_without_effect_do_not_reach_the_proposer():
    given = {"method": "p", "draft_tensor_parallel_size": 1, "disable_padded_drafter_batch": True, "k": 1}

    assert engine_config("m", speculative_config=given).proposer_options == {"k": 1}


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("draft_tensor_parallel_size", 2, "an engine drives one device"),
        ("acceptance_method", "typical_acceptance_sampler", "acceptance is always lossless"),
        ("disable_by_batch_size", 8, "a controller plugin"),
    ],
)
def test_keys_of_speculation_that_ask_for_something_are_refused(key, value, reason):
    message = refused(speculative_config={"method": "p", key: value})

    assert f'option "speculative_config.{key}" = {value!r} is refused: {reason}' in message


def test_short_and_long_names_of_speculation_exclude_each_other():
    assert "both name a proposer" in refused(spec_method="p", speculative_config={"method": "p"})
    assert "num_speculative_tokens is given beside spec_method" in refused(
        spec_method="p", spec_tokens=2, num_speculative_tokens=2
    )
