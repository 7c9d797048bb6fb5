"""``paceline bench`` from the command line, on a tiny model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from paceline.bench.lineup import Contest, load_baseline
from paceline.bench.quality import divergences
from paceline.bench.records import Run
from paceline.bench.transformers_engine import TransformersEngine
from paceline.cli import app
from paceline.ops.packed_linear import PackedLinear

NGRAM = "ngram num_speculative_tokens=3 max_match=4"


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    lines = [("talk", "Hello"), ("talk", "Who are you?"), ("copy", "one two one two one two")]
    file.write_text("".join(json.dumps({"category": kind, "turns": [text]}) + "\n" for kind, text in lines))
    return str(file)


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def succeeded(result: Result, file: Path) -> dict[str, Any]:
    assert result.exit_code == 0, result.output + str(result.exception)
    return json.loads(file.read_text())


def plant_wrong_token(monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    """transformers emits another token there."""
    generate = TransformersEngine.generate

    def wrong(self: TransformersEngine, prompts: Sequence[Sequence[int]], max_tokens: int) -> Run:
        run = generate(self, prompts, max_tokens)
        for request in run.requests:
            request.token_ids[position] ^= 1
        return run

    monkeypatch.setattr(TransformersEngine, "generate", wrong)


def test_compare(tiny_chat: str, prompts: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    arguments = ("--batch", "1,2", "--rounds", "2", "--max-tokens", "6", "--ignore-eos", "--numerics", "exact")
    target = "draft_model model=target num_speculative_tokens=2"
    proposers = ("--proposer", NGRAM, "--proposer", target)
    result = bench("compare", "-m", tiny_chat, "--prompts", prompts, *proposers, *arguments, "-o", str(file))
    saved = succeeded(result, file)
    engines = [
        "transformers",
        "transformers + prompt lookup",
        "transformers continuous batching",
        "paceline",
        f"paceline + {NGRAM}",
        f"paceline + {target}",
    ]
    single = [row["engine"] for row in saved["rows"] if (row["kind"], row["batch"]) == ("talk", 1)]
    assert single == engines
    assert "transformers + prompt lookup" not in {row["engine"] for row in saved["rows"] if row["batch"] == 2}
    assert {row["kind"] for row in saved["rows"]} == {"talk", "copy", "all kinds"}
    for row in saved["rows"]:
        assert row["tokens_per_s"]["min"] <= row["tokens_per_s"]["median"] <= row["tokens_per_s"]["max"]
        assert row["num_output_tokens"] == {"median": 6, "min": 6, "max": 6}
        assert row["agreement"].keys() == {"transformers, batch 1", "paceline"}
        assert all(same == compared for same, compared in row["agreement"].values())
    assert saved["disagreements"] == []
    by_engine = {row["engine"]: row for row in saved["rows"] if row["kind"] == "copy" and row["batch"] == 1}
    assert by_engine[f"paceline + {target}"]["acceptance_length"] > 1
    assert by_engine["paceline"]["acceptance_length"] is None
    assert len(saved["measurements"]) == 2 * 2 * (6 + 5)
    assert "All outputs are the same" in result.output


def test_compare_says_what_the_figures_depend_on(tiny_chat: str, prompts: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    arguments = (
        "--batch",
        "2",
        "--rounds",
        "1",
        "--warmup",
        "0",
        "--max-tokens",
        "2",
        "--mixed",
        "--baseline",
        "generate",
    )
    options = ("--engine-option", "block_size=8", "--proposer", NGRAM)
    saved = succeeded(
        bench("compare", "-m", tiny_chat, "--prompts", prompts, *arguments, *options, "-o", str(file)), file
    )
    facts, workload = saved["environment"], saved["workload"]
    assert facts["model"]["name"] == tiny_chat and len(facts["model"]["weights_fingerprint"]) == 64
    assert facts["transformers"] == {
        "attention": "sdpa",
        "compiled": False,
        "prompt_lookup_num_tokens": 0,
        "continuous_batching": None,
    }
    assert facts["servers"] == {}
    assert {"python", "torch", "transformers", "paceline-core"} <= facts["versions"].keys()
    assert {"cpu", "num_cpus", "memory_gib"} <= facts["hardware"].keys()
    ngram = facts["paceline"][f"paceline + {NGRAM}"]
    assert (ngram["proposer"], ngram["num_speculative_tokens"]) == ("ngram", 3)
    assert ngram["proposer_options"] == {"max_match": 4}
    assert any(line.startswith("proposer ngram (paceline-ngram") for line in ngram["plugins"])
    assert ngram["kv"]["block_size"] == 8 and ngram["kv"]["enable_prefix_caching"] is False
    assert ngram["configuration"]["max_num_seqs"] == 2
    assert workload["kinds"]["mixed"]["num_prompts"] == 3
    assert {row["kind"] for row in saved["rows"]} == {"mixed"}


def test_compare_shows_where_outputs_part(
    tiny_chat: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_wrong_token(monkeypatch, position=1)
    file = tmp_path / "result.json"
    arguments = ("--batch", "1", "--rounds", "2", "--max-tokens", "3", "--ignore-eos", "--lookup-tokens", "0")
    result = bench("compare", "-m", tiny_chat, "--prompts", prompts, *arguments, "-o", str(file))
    found = succeeded(result, file)["disagreements"]
    ours = [item for item in found if item["engine"] == "paceline"]
    assert [(item["cell"]["kind"], item["prompt_index"]) for item in ours] == [("talk", 0), ("talk", 1), ("copy", 0)]
    for item in ours:
        assert (item["reference"], item["num_rounds"], item["difference"]["position"]) == (
            "transformers, batch 1",
            2,
            1,
        )
        assert item["difference"]["token"] == item["difference"]["best"]["token_ids"][0]
        assert item["difference"]["best"]["gap"] > 0
    assert "First differences" in result.output


def test_agreement(tiny_chat: str, prompts: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    arguments = ("--max-tokens", "8", "--numerics", "exact", "--temperature", "1.0", "--seed", "3", "--ignore-eos")
    result = bench("agreement", "-m", tiny_chat, "--prompts", prompts, "--proposer", NGRAM, *arguments, "-o", str(file))
    saved = succeeded(result, file)
    name = f"paceline + {NGRAM}"
    assert [(pair["name"], pair["reference"], pair["sampling"]) for pair in saved["pairs"]] == [
        ("paceline", "transformers", "greedy"),
        (name, "transformers", "greedy"),
        (name, "paceline", "greedy"),
        (name, "paceline", "temperature 1.0"),
    ]
    assert all((pair["num_same"], pair["num_outputs"], pair["num_tokens"]) == (3, 3, 24) for pair in saved["pairs"])
    assert saved["pairs"][2]["num_accepted_tokens"] > 0
    assert saved["is_lossless"]
    assert "All outputs are the same" in result.output


def test_agreement_fails_where_a_difference_is_no_near_tie(
    tiny_chat: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_wrong_token(monkeypatch, position=2)
    file = tmp_path / "result.json"
    arguments = ("--max-tokens", "4", "--ignore-eos", "--num-prompts", "2", "-o", str(file))
    result = bench("agreement", "-m", tiny_chat, "--prompts", prompts, *arguments)
    assert result.exit_code == 1
    assert "NOT ONLY AT NEAR TIES" in result.output
    (pair,) = json.loads(file.read_text())["pairs"]
    assert (pair["num_same"], pair["num_outputs"]) == (0, 2)
    assert {found["position"] for found in pair["differences"].values()} == {2}
    wide = bench("agreement", "-m", tiny_chat, "--prompts", prompts, *arguments, "--near-tie", "100")
    assert wide.exit_code == 0 and "at near ties only" in wide.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch", "0"), "is no number of concurrent requests"),
        (("--proposer", "ngram k"), "is not of the form"),
        (("--engine-option", "k"), "is not of the form"),
        (("-o", "no/such/folder/x.json"), "there is no folder"),
    ],
)
def test_bad_options_are_refused_before_loading(arguments: tuple[str, ...], message: str) -> None:
    result = bench("compare", "-m", "no-such-model", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_errors_are_one_line(tiny_chat: str) -> None:
    result = bench("compare", "-m", tiny_chat, "--engine-option", "blok_size=8")
    assert result.exit_code == 1
    assert "PACELINE-E101" in result.output and "block_size" in result.output
    assert "Traceback" not in result.output


def test_variants_are_engines_with_other_settings(tiny_chat: str, prompts: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    arguments = (
        "--batch",
        "1",
        "--rounds",
        "1",
        "--warmup",
        "0",
        "--max-tokens",
        "2",
        "--lookup-tokens",
        "0",
        "--mixed",
    )
    variants = ("--variant", "quantization=int8 block_size=8")
    saved = succeeded(
        bench("compare", "-m", tiny_chat, "--prompts", prompts, *arguments, *variants, "-o", str(file)), file
    )
    assert [row["engine"] for row in saved["rows"]] == [
        "transformers",
        "transformers continuous batching",
        "paceline",
        "paceline + quantization=int8 block_size=8",
    ]
    facts = saved["environment"]["paceline"]["paceline + quantization=int8 block_size=8"]
    assert (facts["configuration"]["quantization"], facts["kv"]["block_size"]) == ("int8", 8)
    assert saved["environment"]["paceline"]["paceline"]["configuration"]["quantization"] is None


def test_first_token(tiny_chat: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result = bench("first-token", "-m", tiny_chat, "--prompt-tokens", "600", "--rounds", "2", "-o", str(file))
    saved = succeeded(result, file)
    assert saved["num_prompt_tokens"] == 600
    assert saved["times_s"].keys() == {"transformers", "cold", "warm"}
    assert all(0 < times["min"] <= times["median"] <= times["max"] for times in saved["times_s"].values())
    assert saved["warm_speedup"]["min"] <= saved["warm_speedup"]["median"] <= saved["warm_speedup"]["max"]
    assert "600 prompt tokens" in result.output


def test_step(tiny_chat: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    plan = ("--batch", "1,3", "--context", "20", "--steps", "4", "--rounds", "2", "--temperature", "1")
    result = bench("step", "-m", tiny_chat, *plan, "-o", str(file))
    saved = succeeded(result, file)
    assert saved["plan"] == {
        "batches": [1, 3],
        "num_context_tokens": 20,
        "num_steps": 4,
        "num_rounds": 2,
        "temperature": 1.0,
    }
    assert [cost["batch"] for cost in saved["steps"]] == [1, 3]
    for cost in saved["steps"]:
        assert 0 < cost["forward_s"]["min"] < cost["step_s"]["min"] <= cost["step_s"]["max"] < 10
        assert 0 < cost["outside_share"]["min"] < 1 and cost["ratio"]["min"] > 0
    assert saved["steps"][0]["ratio"] == {"median": 1.0, "min": 1.0, "max": 1.0}
    assert "x 1 requests" in result.output


@pytest.mark.parametrize(
    ("option", "told"),
    [("max_num_seqs=2", "max_num_seqs is 2"), ("max_num_batched_tokens=16", "max_num_batched_tokens 16")],
)
def test_requests_that_cannot_decode_together_are_no_measurement(tiny_chat: str, option: str, told: str) -> None:
    plan = ("--batch", "3", "--context", "40", "--steps", "4", "--rounds", "1", "--engine-option", option)
    result = bench("step", "-m", tiny_chat, *plan)
    assert result.exit_code == 1
    assert "PACELINE-E627: all 3 requests decoded together for" in result.stderr
    assert told in result.stderr
    assert "raise them, or give a shorter --context or a smaller --batch" in result.stderr


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quality(tiny_chat: str, prompts: str, tmp_path: Path, quantization: str) -> None:
    file = tmp_path / "result.json"
    arguments = ("--num-prompts", "2", "--answer-tokens", "5", "--prompts", prompts, "--quantization", quantization)
    result = bench("quality", "-m", tiny_chat, *arguments, "-o", str(file))
    saved = succeeded(result, file)
    assert saved["num_tokens"] == 10
    assert 0 < saved["mean_kl"] <= saved["largest_kl"] < 1
    assert 0 <= saved["top1_agreement"] <= 1 and 0 <= saved["same_greedy_tokens"] <= 5
    assert "KL divergence over 10 tokens" in result.output


def test_the_divergence_is_that_of_the_definition() -> None:
    logits, others = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, math.log(3)], [5.0, 5.0]])
    wanted = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert divergences(logits, others).tolist() == pytest.approx([wanted, 0.0])


def test_transformers_runs_on_weights_of_its_own(tiny_chat: str) -> None:
    """The base of every ratio must not run on the kernels that it is compared with."""
    baseline = load_baseline(Contest(tiny_chat, [], {}, "fast", True))
    assert baseline.loaded.native is None
    assert not any(isinstance(module, PackedLinear) for module in baseline.loaded.model.modules())
