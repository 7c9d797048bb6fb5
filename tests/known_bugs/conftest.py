"""Engines that the tests share, what must hold after every run, and the target as transformers computes it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, RequestOutput, SamplingParams
from paceline.kv import invariants

Params = SamplingParams | Sequence[SamplingParams]


@pytest.fixture(scope="session")
def engines(probes: None) -> Iterator[Callable[..., LLM]]:
    """``(model, **options) -> LLM``: one engine per set of options, its prefix cache emptied at each call."""
    made: dict[str, LLM] = {}

    def engine(model: str, **options: Any) -> LLM:
        key = json.dumps([model, options], sort_keys=True)
        if key not in made:
            made[key] = LLM(model, **{"max_model_len": 192, **options})
        made[key].engine.kv.reset()
        return made[key]

    yield engine
    for llm in made.values():
        llm.close()


@pytest.fixture(scope="session")
def settled() -> Callable[[LLM], None]:
    """Asserts that an engine without work holds nothing: no request, no row, no block that is not free or cached."""

    def check(llm: LLM) -> None:
        engine, kv = llm.engine, llm.engine.kv
        assert not engine.has_requests
        assert (engine.num_running, engine.num_waiting) == (0, 0)
        assert kv.num_used == 0
        assert kv.num_free == kv.num_total
        assert not kv.sequences
        assert not kv.block_tables.any()
        assert kv.tables.num_free_rows == len(kv.block_tables)
        invariants.check(kv)

    return check


@pytest.fixture(scope="session")
def serve(settled: Callable[[LLM], None]) -> Callable[..., list[RequestOutput]]:
    """``(llm, prompts, params) -> outputs``; prompts are token lists or mappings. Afterwards the engine is settled."""

    def outputs(llm: LLM, prompts: Sequence[list[int] | Mapping[str, Any]], params: Params) -> list[RequestOutput]:
        given = [prompt if isinstance(prompt, Mapping) else {"prompt_token_ids": prompt} for prompt in prompts]
        served = llm.generate(given, params, use_tqdm=False)
        settled(llm)
        return served

    return outputs


@pytest.fixture(scope="session")
def target_logits() -> Callable[[str, RequestOutput], Any]:
    """``(model directory, output) -> float32 [num output tokens, vocab]`` of one plain transformers forward."""
    models: dict[str, Any] = {}

    def logits(path: str, output: RequestOutput) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        if path not in models:
            models[path] = AutoModelForCausalLM.from_pretrained(path)
        ids = output.prompt_token_ids + output.outputs[0].token_ids
        with torch.inference_mode():
            return models[path](torch.tensor([ids])).logits[0, len(output.prompt_token_ids) - 1 : -1].float()

    return logits


@pytest.fixture(scope="session")
def greedy(
    engines: Callable[..., LLM],
    serve: Callable[..., list[RequestOutput]],
    target_logits: Callable[[str, RequestOutput], Any],
) -> Callable[..., list[list[int]]]:
    """``(model directory, prompts, max_tokens, max_model_len=192) -> ids``: the true continuations at temperature 0.

    They come from an engine without speculation and without a prefix cache, and every token is held against the
    likeliest one of a plain transformers forward.
    """

    def continuations(
        path: str, prompts: Sequence[list[int]], max_tokens: int | None, max_model_len: int = 192
    ) -> list[list[int]]:
        llm = engines(path, enable_prefix_caching=False, max_model_len=max_model_len)
        outputs = serve(llm, prompts, SamplingParams(temperature=0.0, max_tokens=max_tokens))
        for output in outputs:
            assert output.outputs[0].token_ids == target_logits(path, output).argmax(-1).tolist()
        return [output.outputs[0].token_ids for output in outputs]

    return continuations


class Site:
    """A folder of installed distributions on ``sys.path``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: list[str] = []

    @property
    def path(self) -> list[str]:
        return [str(self.folder)]

    def add(self, distribution: str, entry_point: str, source: str, version: str = "1.0") -> None:
        """Install a distribution with one plugin, in the module ``mod_<entry point>``."""
        module = f"mod_{entry_point}"
        (self.folder / f"{module}.py").write_text(source)
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[paceline.plugins]\n{entry_point} = {module}\n")
        own = [f"{module}.py,,", *(f"{info.name}/{file},," for file in ("METADATA", "RECORD", "entry_points.txt"))]
        (info / "RECORD").write_text("\n".join(own) + "\n")
        self.modules.append(module)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(str(tmp_path))
    site = Site(tmp_path)
    yield site
    for module in site.modules:
        sys.modules.pop(module, None)
