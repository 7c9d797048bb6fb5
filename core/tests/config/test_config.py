from __future__ import annotations

import pytest

from paceline.config import ConfigError, EngineConfig, engine_config
from paceline.host.selection import Selection


def refused(*args, **kwargs):
    with pytest.raises(ConfigError) as error:
        engine_config(*args, **kwargs)
    assert str(error.value).startswith("PACELINE-E101: ")
    return str(error.value)


def test_defaults_name_the_built_in_plugins_and_no_proposer():
    config = EngineConfig(model="demo")

    assert config.selections() == [Selection("eviction_policy", "lru", {}), Selection("controller", "fixed", {})]
    assert (config.numerics, config.block_size, config.enable_prefix_caching) == ("fast", 16, True)
    assert not config.trust_remote_code


def test_unknown_name_is_refused_with_the_nearest():
    assert refused("demo", gpu_memory_utilisation=0.5) == (
        "PACELINE-E101: engine configuration: "
        'unknown option "gpu_memory_utilisation" = 0.5; did you mean "gpu_memory_utilization"?'
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gpu_memory_utilization": 1.5}, 'option "gpu_memory_utilization" = 1.5: Input should be less than or equal'),
        ({"max_num_seqs": 0}, 'option "max_num_seqs" = 0: Input should be greater than or equal to 1'),
        ({"numerics": "exakt"}, "option \"numerics\" = 'exakt': Input should be 'fast' or 'exact'"),
        ({"dtype": "int8"}, "option \"dtype\" = 'int8': Input should be 'auto', 'float32'"),
        ({"enable_chunked_prefill": False}, 'option "enable_chunked_prefill" = False is refused: prompts are always'),
        ({"seed": -1}, 'option "seed" = -1: Input should be greater than or equal to 0'),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, "max_num_batched_tokens = 32 is less than max_num_seqs ="),
        ({"num_gpu_blocks_override": 8, "kv_cache_memory_bytes": 9}, "both give the KV size; give one"),
        ({"num_speculative_tokens": 4}, "need a proposer; name one with proposer"),
        ({"proposer_options": {"a": 1}}, "need a proposer; name one with proposer"),
        ({"proposer": ""}, "option \"proposer\" = '': String should have at least 1 character"),
        ({"observers": ["log", "log"]}, 'observers names "log" twice'),
        ({"cache_identity": [{"name": "t"}, "t"]}, 'cache_identity names "t" twice'),
        ({"observers": [{"nme": "log"}]}, 'unknown option "nme"'),
    ],
)
def test_value_that_is_out_of_bounds_is_refused(values, message):
    assert message in refused("demo", **values)


def test_configuration_does_not_change():
    config = EngineConfig(model="demo")

    with pytest.raises(ValueError, match="frozen"):
        config.block_size = 32


def test_selections_carry_the_options_of_each_plugin():
    config = engine_config(
        "demo",
        proposer="pack:fast",
        proposer_options={"a": 1},
        eviction_policy="lfu",
        eviction_policy_options={"b": 2},
        controller="adaptive",
        controller_options={"c": 3},
        cache_identity=["tenant", {"name": "media", "options": {"d": 4}}],
        observers=["log"],
    )

    assert config.selections() == [
        Selection("eviction_policy", "lfu", {"b": 2}),
        Selection("controller", "adaptive", {"c": 3}),
        Selection("cache_identity", "tenant", {}),
        Selection("cache_identity", "media", {"d": 4}),
        Selection("observer", "log", {}),
        Selection("proposer", "pack:fast", {"a": 1}),
    ]


def test_speculative_config_names_the_proposer():
    config = engine_config(
        "demo", speculative_config={"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
    )

    assert (config.proposer, config.num_speculative_tokens) == ("ngram", 5)
    assert config.proposer_options == {"prompt_lookup_max": 4}


def test_model_of_a_speculative_config_is_an_option_of_the_proposer():
    config = engine_config(
        "demo", speculative_config={"method": "draft_model", "model": "small", "num_speculative_tokens": 3}
    )

    assert config.selections()[-1] == Selection("proposer", "draft_model", {"model": "small"})
    assert config.model == "demo"


def test_older_keywords_name_the_proposer():
    config = engine_config(
        "demo",
        speculative_model="[ngram]",
        num_speculative_tokens=4,
        ngram_prompt_lookup_max=3,
        gpu_memory_utilization=0.92,
    )

    assert (config.proposer, config.num_speculative_tokens) == ("ngram", 4)
    assert config.proposer_options == {"ngram_prompt_lookup_max": 3}
    assert config.gpu_memory_utilization == 0.92


def test_keywords_of_another_method_are_unknown():
    assert 'unknown option "eagle_depth" = 2' in refused("demo", speculative_model="[ngram]", eagle_depth=2)
    assert 'unknown option "ngram_max" = 2' in refused("demo", ngram_max=2)


def test_speculative_options_given_as_none_mean_no_speculation():
    assert engine_config("demo", speculative_config=None, speculative_model=None).proposer is None


def test_a_caller_keeps_its_mapping():
    given = {"method": "ngram", "num_speculative_tokens": 5}

    engine_config("demo", speculative_config=given, ngram_min=1)

    assert given == {"method": "ngram", "num_speculative_tokens": 5}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"speculative_config": "ngram"}, "is not a mapping"),
        ({"speculative_config": {"model": "small"}}, 'needs "method", the name of a proposer'),
        ({"speculative_config": {"metod": "ngram"}}, 'did you mean "method"?'),
        ({"speculative_model": "small"}, 'speculative_config={"method": NAME, "model": \'small\''),
        ({"speculative_config": {"method": "ngram"}, "speculative_model": "[ngram]"}, "both name a proposer"),
        ({"speculative_config": {"method": "ngram"}, "proposer": "mtp"}, "proposer is given beside speculative_config"),
        ({"speculative_model": "[ngram]", "proposer": "mtp"}, "proposer is given beside speculative_model"),
        (
            {"speculative_config": {"method": "a", "num_speculative_tokens": 2}, "num_speculative_tokens": 3},
            "num_speculative_tokens is given beside speculative_config",
        ),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 0}},
            'option "num_speculative_tokens" = 0: Input should be greater than or equal to 1',
        ),
    ],
)
def test_speculation_that_cannot_be_meant_is_refused(values, message):
    assert message in refused("demo", **values)
