"""``paceline bench compare`` with all that it can measure, and what it saves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from typer.testing import CliRunner, Result

from paceline.bench.lineup import Contest, load_baseline
from paceline.cli import app

SHORT = ("--rounds", "1", "--warmup", "0", "--max-tokens", "3", "--mixed", "--ignore-eos")
BATCHING = "transformers continuous batching"


@pytest.fixture
def compare(tiny_chat: str, tmp_path: Path) -> Callable[..., tuple[Result, dict[str, Any]]]:
    """``(options) -> (result, what was saved)`` on two prompts."""
    prompts, saved = tmp_path / "prompts.jsonl", tmp_path / "result.json"
    prompts.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in ("Hello", "one two one two")))

    def run(*options: str) -> tuple[Result, dict[str, Any]]:
        arguments = ("-m", tiny_chat, "--prompts", str(prompts), "-o", str(saved), *options)
        result = CliRunner().invoke(app, ["bench", "compare", *arguments])
        return result, json.loads(saved.read_text()) if saved.exists() else {}

    return run


def serves(fake_server: Any, folder: str, *, tells_ids: bool) -> None:
    """Let the server answer as the model does, an event per token."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def answer(body: dict[str, Any]) -> list[Any]:
        ids = torch.tensor([body["prompt"]])
        out = model.generate(ids, attention_mask=ids * 0 + 1, max_new_tokens=body["max_tokens"], eos_token_id=None)
        tokens = out[0, ids.shape[1] :].tolist()
        events = [fake_server.chunk("", [token] if tells_ids else None) for token in tokens]
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        return [*events, fake_server.chunk(text, None, "length"), fake_server.usage(len(tokens)), fake_server.END]

    fake_server.answer = answer


@pytest.mark.parametrize("tells_ids", [True, False])
def test_a_server_takes_part(
    tiny_chat: str, fake_server: Any, compare: Callable[..., tuple[Result, dict[str, Any]]], tells_ids: bool
) -> None:
    serves(fake_server, tiny_chat, tells_ids=tells_ids)
    server = f"{fake_server.url} model=tiny"
    result, saved = compare(*SHORT, "--batch", "1,2", "--baseline", "generate", "--server", server)
    assert result.exit_code == 0, result.output + repr(result.exception)
    name = f"server {fake_server.url.removesuffix('/v1')} (tiny)"
    rows = [row for row in saved["rows"] if row["engine"] == name]
    assert [row["batch"] for row in rows] == [1, 2]
    for row in rows:
        assert row["agreement"] == {"transformers, batch 1": [2, 2], "paceline": [2, 2]}
        assert row["num_output_tokens"]["median"] == 3
        assert row["ttft_s"]["median"] > 0 and row["ratio_to_transformers"]["median"] > 0
        assert (row["tokens_per_pass"], row["acceptance_length"]) == (None, None)
    compared_by = "token ids" if tells_ids else "text, tokenized again"
    facts = saved["environment"]["servers"][name]
    assert (facts["url"], facts["model"], facts["outputs_compared_by"]) == (fake_server.url, "tiny", compared_by)
    assert {row["engine"] for row in saved["rows"]} == {"transformers", "paceline", name}
    assert compared_by in result.output and "not controlled" in result.output
    assert "left out" not in result.output


def test_tokens_of_a_text_are_those_of_what_is_left_of_it(tiny_chat: str) -> None:
    """A server's text lacks white space that its tokenizer drops, and the character that the last token began."""
    baseline = load_baseline(Contest(tiny_chat, [], {}, "fast", False))
    word = baseline.tokenize("no\u00ebl x")
    assert baseline.retokenize(word) == word
    assert baseline.tokenize(" no\u00ebl x\n") == word
    cut = baseline.tokenize("no\u00eb")[:-1]
    assert baseline.retokenize(cut) == baseline.tokenize("no\ufffd") == baseline.tokenize("no")


def test_another_model_behind_the_server_shows(
    fake_server: Any, compare: Callable[..., tuple[Result, dict[str, Any]]]
) -> None:
    fake_server.answer = lambda body: [fake_server.chunk("aaa", [97, 97, 97], "length")]
    _, saved = compare(*SHORT, "--batch", "1", "--baseline", "generate", "--server", fake_server.url)
    (row,) = [row for row in saved["rows"] if row["engine"].startswith("server")]
    assert row["agreement"]["transformers, batch 1"] == [0, 2]
    assert row["tpot_s"] is None
    assert {found["engine"] for found in saved["disagreements"]} == {row["engine"]}


def test_a_server_is_asked_before_anything_is_loaded(fake_server: Any) -> None:
    server = f"{fake_server.url} model=other"
    result = CliRunner().invoke(app, ["bench", "compare", "-m", "no-such-model", "--server", server])
    assert result.exit_code == 1
    assert "PACELINE-E624" in result.output and "Traceback" not in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--server", "localhost"), "is no URL of a server"),
        (("--baseline", "prompt-lookup", "--lookup-tokens", "0"), "drafts nothing"),
        (("--baseline", "vllm"), "continuous-batching"),
    ],
)
def test_bad_options_are_refused_before_loading(options: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", "compare", "-m", "no-such-model", *options])
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_a_model_that_cannot_be_batched_so_is_left_out_and_said_so_or_refused(
    compare: Callable[..., tuple[Result, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, **keywords: Any) -> None:
        raise ValueError("no paged attention")

    monkeypatch.setattr(LlamaForCausalLM, "init_continuous_batching", refuse)
    named, _ = compare(*SHORT, "--batch", "1", "--baseline", "continuous-batching")
    assert named.exit_code == 1 and "PACELINE-E621" in named.output
    result, saved = compare(*SHORT, "--batch", "1", "--lookup-tokens", "0")
    assert [row["engine"] for row in saved["rows"]] == ["transformers", "paceline"]
    reason = saved["environment"]["transformers"]["continuous_batching"]["left_out"]
    assert "ValueError: no paged attention" in reason
    assert f"left out: {BATCHING} (transformers' continuous batching cannot run" in result.output


def found(record: Any, path: str) -> Any:
    for key in path.split("/"):
        record = record[int(key) if isinstance(record, list) else key]
    return record


MODEL = ("name", "revision", "commit", "architecture", "weights_fingerprint", "tokenizer", "tokenizer_fingerprint")
MODEL += ("dtype", "device")
ENGINE = ("proposer", "num_speculative_tokens", "proposer_options", "plugins", "configuration", "kv/dtype")
ENGINE += ("kv/block_size", "kv/num_blocks", "kv/enable_prefix_caching", "kv/eviction_policy")
ENVIRONMENT = ("started", "verifier", "numerics", "ends_at_end_token", "prefix_sharing", "versions", "hardware")
ENVIRONMENT += ("threads", "load_average_at_start", "load_average_at_end", "servers", "transformers/attention")
ENVIRONMENT += ("transformers/prompt_lookup_num_tokens", "transformers/continuous_batching/num_blocks")
WORKLOAD = ("kinds/mixed/num_prompts", "kinds/mixed/prompt_tokens/median", "concurrency", "filling", "max_tokens")
WORKLOAD += ("sampling", "num_rounds", "order", "warm_up", "wall_time_s")
ROW = ("engine", "kind", "batch", "tokens_per_s/median", "tokens_per_s/min", "tokens_per_s/max", "tokens_per_pass")
ROW += ("ratio_to_transformers/median", "ratio_to_transformers_smallest_batch/median", "acceptance_length")
ROW += ("ratio_to_no_speculation/median", "ttft_s/median", "tpot_s/median", "num_output_tokens/median", "agreement")
MEASUREMENT = ("round", "engine", "kind", "batch", "seconds", "num_requests", "num_tokens", "num_passes")
MEASUREMENT += ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "draft_time_s", "verify_time_s", "ttft_s")


def test_all_that_a_figure_depends_on_is_saved(compare: Callable[..., tuple[Result, dict[str, Any]]]) -> None:
    """Whoever repeats a run needs each; ``None`` says that there is none, a missing key says nothing."""
    proposer = "ngram num_speculative_tokens=2"
    result, saved = compare(*SHORT, "--batch", "1", "--proposer", proposer)
    assert result.exit_code == 0, result.output
    sections = {"environment/model": MODEL, f"environment/paceline/paceline + {proposer}": ENGINE}
    sections |= {"environment": ENVIRONMENT, "workload": WORKLOAD, "rows/4": ROW, "measurements/4": MEASUREMENT}
    for section, names in sections.items():
        for name in names:
            found(saved, f"{section}/{name}")
    engines = [row["engine"] for row in saved["rows"]]
    assert engines == ["transformers", "transformers + prompt lookup", BATCHING, "paceline", f"paceline + {proposer}"]
    assert {"python", "torch", "transformers", "httpx2"} <= saved["environment"]["versions"].keys()
    same = [row["agreement"]["transformers, batch 1"] for row in saved["rows"]]
    assert same == [[2, 2]] * 5
