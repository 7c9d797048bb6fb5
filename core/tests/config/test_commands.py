from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.config.commands import app
from paceline.config.engine import EngineConfig
from paceline.config.layout import json_schema
from paceline.config.page import as_markdown


@pytest.fixture
def run(folder: Path):
    """``(*arguments) -> result`` of ``paceline config`` in an empty folder."""
    return lambda *arguments, **variables: CliRunner().invoke(app, arguments, env=variables)


def rows(result):
    return {line.split()[0]: line.split(maxsplit=2)[1:] for line in result.stdout.splitlines()}


def test_show_prints_every_field_value_and_origin(run, folder: Path):
    (folder / "paceline.yaml").write_text("cache:\n  block_size: 8\nspeculation: {proposer: p, options: {a: x y}}\n")
    result = run("show", "-m", "M", "--engine-option", "max_num_seqs=3", PACELINE_SEED="5")

    found = rows(result)
    assert result.exit_code == 0
    assert found["model"] == ['"M"', "command line"]
    assert found["max_num_seqs"] == ["3", "command line"]
    assert found["seed"] == ["5", "environment variable PACELINE_SEED"]
    assert found["block_size"] == ["8", "paceline.yaml:2"]
    assert found["max_num_batched_tokens"] == ["2048", "default"]
    assert found["max_model_len"] == ["null", "default (the checkpoint's)"]
    assert 'proposer_options.a       "x y"' in result.stdout and found.keys() >= EngineConfig.model_fields.keys() - {
        "proposer_options"
    }


def test_show_as_json(run, folder: Path):
    (folder / "c.yaml").write_text("engine: {seed: 4}")
    record = json.loads(run("show", "--json", "--config", "c.yaml").stdout)

    assert record["file"] == "c.yaml"
    assert record["fields"]["seed"] == {"value": 4, "source": "file", "place": "c.yaml:1"}
    assert record["fields"]["block_size"] == {"value": 16, "source": "default", "place": None}
    assert json.loads(run("show", "--json").stdout)["file"] is None


def test_show_tells_the_plugin_policy_in_force(run, folder: Path):
    (folder / "paceline-plugins.toml").write_text('mode = "open"\n')
    (folder / "p.toml").write_text('mode = "allow"\n')

    found = rows(run("show"))
    assert found["plugin_policy"] == ['"paceline-plugins.toml"', "the working directory"]
    assert found["plugin_policy.mode"] == ['"open"', "paceline-plugins.toml"]
    fields = json.loads(run("show", "--json", "--plugin-policy", "p.toml").stdout)["fields"]
    assert fields["plugin_policy"] == {"value": "p.toml", "source": "command line", "place": None}
    assert fields["plugin_policy.mode"] == {"value": "allow", "source": "file", "place": "p.toml"}
    assert rows(run("show", PACELINE_PLUGIN_POLICY="p.toml"))["plugin_policy.mode"] == ['"allow"', "p.toml"]
    assert "PACELINE-E210" in run("show", "--plugin-policy", "gone.toml").stderr


def test_show_refuses_what_generate_would(run, folder: Path):
    result = run("show", "--engine-option", "blok_size=4")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("PACELINE-E101: ") and result.stderr.count("\n") == 1
    result = run("show", "--engine-option", "block_size")
    assert result.exit_code == 2 and '"block_size" is not of the form key=value' in result.stderr


def test_schema_and_arguments_are_printed(run):
    assert json.loads(run("schema").stdout) == json_schema()
    assert run("arguments").stdout == as_markdown()
