"""Failures of the cache identity: KV found under an identity or tokens other than its own."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import LLM, RequestOutput, SamplingParams
from paceline.engine import identity
from paceline.kv.identity import CoreIdentity

Serve = Callable[..., list[RequestOutput]]

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)

ADAPTER = """
from pydantic import BaseModel
from paceline.api import IdentityCapabilities, IdentityContributor, IdentityContributorSpec, hookimpl

LOADS = {"A": 1, "B": 1}

class Options(BaseModel):
    pass

class Adapter(IdentityContributor):
    def request_fields(self, request):
        name = request.metadata.get("adapter")
        return {} if name is None else {"name": name, "load": LOADS[name]}

@hookimpl
def paceline_cache_identity():
    return [IdentityContributorSpec(
        name="adapter", summary="A request's adapter, by name and load.", options=Options, requires_api=">=0.1",
        describe=lambda options, target: IdentityCapabilities(), build=lambda options, context: Adapter(),
    )]
"""

ADAPTER_SHIFTS = {"": 0, "A1": 1, "B1": 2, "A2": 3}  # how an adapter's load changes the value projections


@pytest.fixture
def put_on(tmp_path: Path, tiny: Callable[..., str]) -> Callable[[LLM, str], str]:
    """``(llm, adapter) -> model directory``: the engine gets the base's weights with that adapter; ``""`` = none."""
    from safetensors.torch import load_file, save_file

    def put(llm: LLM, adapter: str) -> str:
        folder = tmp_path / f"with-{adapter or 'none'}"
        if not folder.exists():
            shutil.copytree(tiny(), folder)
            weights = load_file(folder / "model.safetensors")
            for name in weights:
                if "v_proj" in name:
                    weights[name] = weights[name].roll(ADAPTER_SHIFTS[adapter], 0)
            save_file(weights, folder / "model.safetensors", {"format": "pt"})
        llm.built.loaded.model.load_state_dict(load_file(folder / "model.safetensors"))
        return str(folder)

    return put


def test_kv_of_one_identity_is_never_found_under_another(
    tiny: Callable[..., str],
    site: Any,
    serve: Serve,
    reference: Callable[..., list[int]],
    put_on: Callable[[LLM, str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B019: adapters A and B and no adapter, then A loaded anew with other weights under its name."""
    monkeypatch.setattr("paceline.model.loading.native_library", lambda: None)  # packed weights are not to be changed
    site.add("paceline-adapter", "adapter", ADAPTER)
    prompt = np.random.default_rng(2).integers(0, 512, 40).tolist()
    with LLM(tiny(), cache_identity=["adapter"], block_size=4, max_model_len=64) as llm:

        def num_cached(name: str, weights: str) -> int:
            folder = put_on(llm, weights)
            metadata = {"adapter": name} if name else {}
            output = serve(llm, [{"prompt_token_ids": prompt, "metadata": metadata}], GREEDY)[0]
            assert output.outputs[0].token_ids == reference(folder, prompt, 8)
            return output.num_cached_tokens

        assert num_cached("A", "A1") == 0
        assert num_cached("B", "B1") == 0
        assert num_cached("", "") == 0
        assert [num_cached("A", "A1"), num_cached("B", "B1"), num_cached("", "")] == [39, 39, 39]
        importlib.import_module("mod_adapter").LOADS["A"] += 1
        assert num_cached("A", "A2") == 0
        assert [num_cached("A", "A2"), num_cached("B", "B1"), num_cached("", "")] == [39, 39, 39]


def test_identity_is_of_the_weights_and_not_of_their_name(
    tiny: Callable[..., str], tmp_path: Path, serve: Serve
) -> None:
    """B019: the same folder with other weights, and the same weights in another folder."""
    prompt = np.random.default_rng(2).integers(0, 512, 40).tolist()

    def keys(source: str, folder: Path) -> set[bytes]:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        with LLM(str(folder), max_model_len=64) as llm:
            serve(llm, [prompt], GREEDY)
            return {entry.key for entry in llm.engine.kv.cache.index.entries}

    first = keys(tiny(), tmp_path / "model")
    reloaded = keys(tiny(1), tmp_path / "model")
    elsewhere = keys(tiny(), tmp_path / "moved")
    assert len(first) == 2
    assert first.isdisjoint(reloaded)
    assert first == elsewhere


RECOMPUTE = """
import json, sys
import numpy as np
from paceline.api import RequestFacts
from paceline.kv.chain import KeyChain
from paceline.kv.identity import CoreIdentity, IdentityBuilder

told = json.load(sys.stdin)
identity = IdentityBuilder(CoreIdentity(**told["core"]))
keys = []
for ids in told["prompts"]:
    chain = KeyChain(identity, RequestFacts(request_id="r", num_prompt_tokens=len(ids)), told["block_size"])
    tokens = np.array(ids)
    keys += [chain.key(depth, tokens).hex() for depth in range(len(ids) // told["block_size"])]
print(json.dumps(keys))
"""

SERVE = """
import json, sys
from paceline import LLM, SamplingParams

told = json.load(sys.stdin)
with LLM(told["model"], block_size=told["block_size"], max_model_len=64) as llm:
    prompts = [{"prompt_token_ids": ids} for ids in told["prompts"]]
    llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
    print(json.dumps([entry.key.hex() for entry in llm.engine.kv.cache.index.entries]))
"""


def twenty_prompts() -> list[list[int]]:
    """Different prompts; some share a first block, some hold the same tokens in another order or place."""
    rng = np.random.default_rng(9)
    first = rng.integers(0, 512, 4).tolist()
    prompts = [first + rng.integers(0, 512, 5 + n).tolist() for n in range(10)]
    return prompts + [prompt[::-1] for prompt in prompts]


def keys_in_another_process(program: str, told: dict[str, Any], hash_seed: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(told),
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


@pytest.fixture
def published(
    tiny: Callable[..., str], serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], set[str]]:
    """What another process must know to make the keys of the twenty prompts, and those that an engine published."""
    told: dict[str, Any] = {"model": tiny(), "prompts": twenty_prompts(), "block_size": 4}

    def noted(**fields: Any) -> CoreIdentity:
        told["core"] = fields
        return CoreIdentity(**fields)

    monkeypatch.setattr(identity, "CoreIdentity", noted)
    with LLM(tiny(), block_size=4, max_model_len=64) as llm:
        serve(llm, told["prompts"], SamplingParams(temperature=0.0, max_tokens=1))
        return told, {entry.key.hex() for entry in llm.engine.kv.cache.index.entries}


def test_block_keys_are_digests_that_no_hash_seed_changes(published: tuple[dict[str, Any], set[str]]) -> None:
    """B023: a hit is not compared token by token, so a key must be a digest of parent, tokens and identity."""
    told, keys = published
    # One key for each different head of whole blocks.
    assert len(keys) == len({tuple(p[: 4 * (n + 1)]) for p in told["prompts"] for n in range(len(p) // 4)})
    assert {len(bytes.fromhex(key)) for key in keys} == {32}
    for hash_seed in ("0", "1", "random"):
        assert keys_in_another_process(RECOMPUTE, told, hash_seed) == keys


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_block_keys_are_the_same_in_another_process(published: tuple[dict[str, Any], set[str]], hash_seed: str) -> None:
    """B023: whole engines."""
    told, keys = published
    assert keys_in_another_process(SERVE, told, hash_seed) == keys


def test_cached_prompts_that_look_alike_do_not_answer_for_each_other(
    tiny: Callable[..., str], engines: Callable[..., LLM], serve: Serve, greedy: Callable[..., list[list[int]]]
) -> None:
    """B023."""
    llm = engines(tiny(), block_size=4, max_model_len=64)
    wanted = greedy(tiny(), twenty_prompts(), 4)
    params = SamplingParams(temperature=0.0, max_tokens=4)
    for _ in range(2):
        outputs = serve(llm, twenty_prompts(), params)
        assert [output.outputs[0].token_ids for output in outputs] == wanted
    assert all(output.num_cached_tokens for output in outputs)
