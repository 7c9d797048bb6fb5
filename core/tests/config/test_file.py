from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.engine import EngineConfig
from paceline.config.layout import LAYOUT, json_schema


def test_every_field_has_one_place_in_the_file():
    fields = [field for keys in LAYOUT.values() for field in keys.values()]

    assert sorted([*fields, "plugin_policy"]) == sorted(EngineConfig.model_fields)


def test_the_plugin_policy_has_no_place_in_the_file(refusal):
    assert "; it is given with --plugin-policy or PACELINE_PLUGIN_POLICY, or is paceline-plugins.toml in" in refusal(
        "plugins:\n  plugin_policy: p.toml\n"
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "engine:\n", "{}", "cache: {}\nplugins:\n"])
def test_a_file_may_say_nothing(resolved, text):
    assert resolved(text).config == EngineConfig(model="demo")


@pytest.mark.parametrize("text", ["model: m", "model:\n  name: m"])
def test_the_model_may_be_given_as_a_name(resolved, text):
    assert resolved(text).config == EngineConfig(model="m")


def test_anchors_and_merges_are_yaml_as_usual(resolved):
    config = resolved(
        "speculation: &s\n  proposer: p\n  options: &o {a: 1}\n  controller_options: {<<: *o, b: 2, a: 3}"
    ).config

    assert (config.proposer_options, config.controller_options) == ({"a": 1}, {"a": 3, "b": 2})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine:\n  max_num_sequences: 4", ':2: unknown key "engine.max_num_sequences" = 4; did you mean "max_num'),
        ("engin: {}", ':1: unknown section "engin"; did you mean "engine"?'),
        ("zzz: {}", ':1: unknown section "zzz"; known: cache, engine, model, plugins, speculation'),
        ("block_size: 4", ':1: unknown section "block_size"; it is a key of section cache'),
        ("engine:\n  block_size: 4", ':2: unknown key "engine.block_size" = 4; it belongs under cache.block_size'),
        ("engine: {model: m}", ':1: unknown key "engine.model" = \'m\'; "model" is a section of its own'),
        ("engine: {proposer_options: {}}", "it belongs under speculation.options"),
        ("engine: {enforce_eager: true}", "; accepted without effect: there are no captured or compiled graphs"),
        ("engine: {tensor_parallel_size: 1}", "; accepted without effect: an engine drives one device"),
        ("engine: {qwertz: 1}", '"engine.qwertz" = 1; known: block_size, cache_identity, '),
        ("engine: {1: 2}", ':1: unknown key "engine.1" = 2'),
        ("engine: 4", ":1: section engine = 4 is not a mapping of keys"),
        ("engine: [seed]", ":1: section engine = ['seed'] is not a mapping of keys"),
        ("- a", ": the file is not a mapping of sections; known: model, engine, "),
        ("engine:\n  seed: 1\n  seed: 2", ':3: key "seed" is given twice, first in line 2'),
        ("engine: {seed: 1, seed: 2}", ':1: key "seed" is given twice, first in line 1'),
        ("engine: {seed: 1}\nengine: {}", ':2: key "engine" is given twice, first in line 1'),
        ("speculation: {proposer: p, options: {a: [{b: 1, b: 2}]}}", ':1: key "b" is given twice'),
        ("speculation: {options: &a {b: *a}}", ":1: a value refers to itself"),
        ("engine:\n  seed: [", ":2: "),
        ("engine:\n\tseed: 1", ":2: found character '\\t' that cannot start any token"),
        ("engine: {seed: 1}\n---\nengine: {}", ":2: but found another document"),
        ("engine: {seed: !!python/name:os.system x}", ":1: could not determine a constructor for the tag"),
        ("engine: {seed: 2024-13-45}", " is not YAML that can be read: month must be in 1..12"),
        ("[" * 2000, " is not YAML that can be read: maximum recursion depth"),
        ("model: {revision: 1.0}", ":1: model.revision = 1.0: Input should be a valid string; put it in quotes"),
        ("plugins: {observers: [{nme: log}]}", ':1: plugins.observers: plugin choice: '),
        ("plugins:\n  observers:\n  - {nme: log}", 'unknown option "nme" = \'log\'; did you mean "name"?'),
        ("plugins: {observers: [log, 4]}", ":1: plugins.observers[1] = 4: "),
        ("plugins: {observers: log}", ":1: plugins.observers = 'log': Input should be a valid tuple"),
        ("speculation: {options: [a]}", ":1: speculation.options = ['a']: Input should be a valid dictionary"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_line_key_and_remedy(refusal, text, message):
    found = refusal(text)

    assert found.startswith("paceline.yaml") and message in found


def test_a_file_that_is_no_text(folder: Path, refusal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "write_text", lambda self, text, encoding: self.write_bytes(b"a\xff"))

    assert refusal("") == "paceline.yaml is not UTF-8 text (invalid start byte at byte 1)"


# -- the schema ------------------------------------------------------------------------------------------------------


def test_the_schema_has_every_key_with_its_meaning():
    sections = {name: section["anyOf"][0] for name, section in json_schema()["properties"].items()}
    sections["model"] = sections["model"]["anyOf"][0]

    assert {name: list(section["properties"]) for name, section in sections.items()} == {
        name: list(keys) for name, keys in LAYOUT.items()
    }
    for section in sections.values():
        assert section["additionalProperties"] is False
        for key in section["properties"].values():
            assert len(key["description"]) > 5


def test_the_schema_knows_short_forms():
    schema = json_schema()
    sections = schema["properties"]

    assert {"type": "string"}.items() <= sections["model"]["anyOf"][0]["anyOf"][1].items()
    observers = sections["plugins"]["anyOf"][0]["properties"]["observers"]["items"]["anyOf"]
    assert observers == [{"type": "string"}, {"$ref": "#/$defs/PluginChoice"}]
    assert "name" in schema["$defs"]["PluginChoice"]["properties"]
    assert "half" in str(sections["model"]["anyOf"][0]["anyOf"][0]["properties"]["dtype"])
