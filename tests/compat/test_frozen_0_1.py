"""Plugins that were written for ``paceline.api`` 0.1, each at work on the present core."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, RequestOutput, SamplingParams
from paceline.api import API_VERSION, ConstraintError, PluginError
from paceline.host.negotiation import fits
from paceline.plugin_command import run_plugin_command

pytestmark = pytest.mark.skipif(
    not fits(">=0.1,<0.2", API_VERSION), reason=f"paceline.api {API_VERSION} refuses what was made for 0.1"
)

Engine = Callable[..., LLM]
PROMPTS = [[7, 8, 9, 7, 8, 9, 7], [100, 101, 102, 103, 104], [7, 8, 9, 7, 8, 9, 7, 8]]
CONTROLLER = {"controller": "frozen_controller_0_1", "num_speculative_tokens": 4}


def serve(llm: LLM, prompts: Sequence[Any] = PROMPTS, **params: Any) -> list[RequestOutput]:
    asked = [prompt if isinstance(prompt, dict) else {"prompt_token_ids": prompt} for prompt in prompts]
    wanted = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "seed": 3, **params})
    return llm.generate(asked, wanted, use_tqdm=False)


def tokens(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(
    ("name", "options"),
    [("memory", {}), ("paged", {"rule": "choose"}), ("paged", {"rule": "noise"}), ("branching", {})],
)
def test_proposer(engine: Engine, name: str, options: dict[str, str], temperature: float) -> None:
    plain = serve(engine(), temperature=temperature)
    proposer = {"proposer": f"frozen_proposer_0_1:{name}", "proposer_options": options, "num_speculative_tokens": 3}
    llm = engine(**proposer)
    for _ in range(2):  # the second time from the prefix cache, and from memory
        drafted = serve(llm, temperature=temperature)
        assert tokens(drafted) == tokens(plain)
    assert sum(output.metrics.num_draft_tokens for output in drafted) > 0
    if name == "paged":
        assert all(output.metrics.num_accepted_tokens >= 6 for output in drafted)


def test_eviction_policy(engine: Engine) -> None:
    prompts = [[token] * 24 for token in range(20, 32)]
    small = engine(eviction_policy="frozen_eviction_policy_0_1", num_gpu_blocks_override=24, max_num_seqs=2)
    outputs = serve(small, prompts + prompts[-1:])
    assert tokens(outputs) == tokens(serve(engine(), prompts + prompts[-1:]))
    last, first = (serve(small, [prompt], max_tokens=1)[0].num_cached_tokens for prompt in (prompts[-1], prompts[0]))
    assert last > 0
    assert first == 0


def test_eviction_policy_is_asked_for_what_is_cheap(engine: Engine) -> None:
    small = engine(eviction_policy="frozen_eviction_policy_0_1", num_gpu_blocks_override=24, max_num_seqs=1)
    often, rarely = [5] * 24, [[token] * 24 for token in range(20, 26)]
    for prompt in rarely:
        serve(small, [often, prompt], max_tokens=2)
    (output,) = serve(small, [often], max_tokens=1)
    assert output.num_cached_tokens >= 16


def test_cache_identity(engine: Engine) -> None:
    llm = engine(
        cache_identity=[{"name": "frozen_cache_identity_0_1", "options": {"revision": "r1", "marked_from": 200}}]
    )

    def cached(metadata: dict[str, str], token: int = 5) -> int:
        prompt = {"prompt_token_ids": [token] * 16, "metadata": metadata}
        (output,) = serve(llm, [prompt], max_tokens=1)
        return output.num_cached_tokens

    assert cached({"tenant": "a"}) == 0
    assert cached({"tenant": "a"}) > 0
    assert cached({"tenant": "b"}) == 0
    assert cached({"tenant": "a", "mark": "x"}) > 0
    assert cached({"tenant": "a", "mark": "x"}, token=300) == 0
    assert cached({"tenant": "a", "mark": "y"}, token=300) == 0
    assert cached({"tenant": "a", "mark": "x"}, token=300) > 0


def test_controller(engine: Engine) -> None:
    proposer = {"proposer": "frozen_proposer_0_1:paged"}
    whole = serve(engine(**proposer, num_speculative_tokens=4), max_tokens=9)
    limited = serve(engine(**proposer, **CONTROLLER), max_tokens=9)
    assert tokens(whole) == tokens(limited)
    for output in limited:
        assert 0 < output.metrics.num_draft_tokens <= 2 * output.metrics.num_drafts
    assert any(output.metrics.num_draft_tokens > 2 * output.metrics.num_drafts for output in whole)


@pytest.mark.parametrize("proposer", [{}, {"proposer": "frozen_proposer_0_1:paged", "num_speculative_tokens": 3}])
@pytest.mark.parametrize("parity", ["even", "odd"])
def test_constraint(engine: Engine, proposer: dict[str, Any], parity: str) -> None:
    llm = engine(constraints=["frozen_constraint_0_1"], **proposer)
    outputs = serve(llm, constraints={"frozen_constraint_0_1": parity}, temperature=1.3)
    assert {token % 2 for emitted in tokens(outputs) for token in emitted} == {0 if parity == "even" else 1}


def test_constraint_refuses(engine: Engine) -> None:
    llm = engine(constraints=["frozen_constraint_0_1"])
    with pytest.raises(ConstraintError, match='"prime" is no parity; ask for "even" or "odd"'):
        serve(llm, constraints={"frozen_constraint_0_1": "prime"})


def test_observer(engine: Engine, tmp_path: Path) -> None:
    output = tmp_path / "seen.json"
    observer = {"name": "frozen_observer_0_1", "options": {"output": str(output)}}
    llm = engine(observers=[observer], proposer="frozen_proposer_0_1:paged", num_speculative_tokens=3)
    serve(llm)
    serve(llm)
    llm.close()
    seen = json.loads(output.read_text())
    assert (seen["emitted"], seen["vocabulary"], seen["running"]) == (2 * 3 * 12, 512, 0)
    assert seen["reasons"] == ["length"]
    assert seen["steps"] == seen["last step"] + 1
    assert 0 < seen["accepted"] <= seen["drafted"]
    assert seen["stored"] > 0 and seen["cached"] > 0
    assert seen["finished 19"] == 2


def run_command(*arguments: str) -> None:
    run_plugin_command("sketch", "frozen_command_0_1", arguments)


def test_command(engine: Engine, tiny: Callable[..., str], tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    own = ["--target", tiny(), "--output", str(output), "--numerics", "exact"]
    run_command(*own, "--tokens", "7", "--tokens", "8")
    found = json.loads(output.read_text())
    assert [found["tokens"]] == tokens(serve(engine(), [[7, 8]], max_tokens=6))
    assert (found["prompt"], found["reason"], found["finished"]) == ([7, 8], "length", [0])
    assert (found["vocabulary"], found["has words"], found["drafts"]) == (512, False, [0, 0, 0])
    assert (found["width"], found["embedded"]) == ([1, 512], [3, 64])


def test_command_refuses(frozen: Path, tiny: Callable[..., str], tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="there is no prompt; give --tokens"):
        run_command("--target", tiny(), "--output", str(tmp_path / "found.json"))
