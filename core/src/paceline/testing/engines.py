"""Engines to try plugins in, and requests to run through them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch

from paceline.api import RequestFacts
from paceline.engine.llm import LLM
from paceline.kv import invariants
from paceline.sampling.params import SamplingParams
from paceline.testing import helpers
from paceline.testing.models import MAX_MODEL_LEN, VOCAB_SIZE, work_folder

__all__ = ["Ask", "add", "engine", "finish", "prompts", "random_tokens", "run", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request of the kit.

    Attributes:
        tokens: The prompt.
        max_tokens: Most tokens to emit.
        temperature: 0 is greedy.
        seed: Its own, so that it emits the same wherever it runs.
        trust_domain: As of a prompt.
        metadata: As of a prompt.
        priority: As of a prompt.
        constraints: As of ``SamplingParams``.
        structured_outputs: As of ``SamplingParams``.
        ignore_eos: Whether the end token ends nothing.
    """

    tokens: Sequence[int]
    max_tokens: int = 16
    temperature: float = 0.7
    seed: int = 11
    trust_domain: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    constraints: Mapping[str, Any] = field(default_factory=dict)
    structured_outputs: Mapping[str, Any] | None = None
    ignore_eos: bool = True


@contextmanager
def engine(model: str, **settings: Any) -> Iterator[LLM]:
    """An engine in exact numerics with the core's thorough checks; every block must be free when it has closed."""
    defaults = {"numerics": "exact", "max_model_len": MAX_MODEL_LEN, "block_size": 8, "num_gpu_blocks_override": 128}
    with _one_thread():
        with mock.patch.dict(os.environ, PACELINE_CHECK="1"), _helpers_installed():
            llm = LLM(model, plugin_policy=_open_policy(), **defaults | settings)
        with llm:
            yield llm
    invariants.check(llm.engine.kv)
    assert llm.engine.kv.num_used == 0, f"{llm.engine.kv.num_used} blocks are in use after every request has ended"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tiny models are slower on more threads, the more so the busier the machine is."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _open_policy() -> str:
    """The policy in force was asked about the plugin when it was loaded; the engine runs the kit's own as well."""
    path = work_folder() / "open.toml"
    path.write_text('mode = "open"\n', encoding="utf-8")
    return str(path)


@contextmanager
def _helpers_installed() -> Iterator[None]:
    site = work_folder() / "site"
    info = site / "paceline_kit-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paceline-kit\nVersion: 0\n", encoding="utf-8")
    entry_point = f"[paceline.plugins]\n{helpers.NAME} = {helpers.__name__}\n"
    (info / "entry_points.txt").write_text(entry_point, encoding="utf-8")
    with mock.patch.object(sys, "path", [*sys.path, str(site)]):
        yield


def add(llm: LLM, request_id: str, ask: Ask) -> None:
    """Queue a request under an id of the caller's choice."""
    facts = RequestFacts(
        request_id=request_id,
        num_prompt_tokens=len(ask.tokens),
        trust_domain=ask.trust_domain,
        metadata=ask.metadata,
    )
    params = SamplingParams(
        temperature=ask.temperature,
        seed=ask.seed,
        max_tokens=ask.max_tokens,
        ignore_eos=ask.ignore_eos,
        constraints=dict(ask.constraints),
        structured_outputs=None if ask.structured_outputs is None else dict(ask.structured_outputs),
    )
    llm.engine.add_request(facts, np.array(ask.tokens, dtype=np.int64), params, priority=ask.priority)


def step(llm: LLM, num_steps: int) -> dict[str, list[int]]:
    """Step so often; the tokens of requests that ended."""
    emitted: dict[str, list[int]] = {}
    for _ in range(num_steps):
        emitted |= {done.request_id: list(done.outputs[0].token_ids) for done in llm.engine.step().finished}
    return emitted


def finish(llm: LLM) -> dict[str, list[int]]:
    """Step until no request is left; the tokens of each by its id."""
    emitted: dict[str, list[int]] = {}
    while llm.engine.has_requests:
        for output in llm.engine.step().finished:
            assert not output.error, f"request {output.request_id} ended with an error: {output.error}"
            emitted[output.request_id] = list(output.outputs[0].token_ids)
    return emitted


def run(llm: LLM, asks: Iterable[Ask]) -> list[list[int]]:
    """Run requests together; the tokens of each."""
    ids = []
    for index, ask in enumerate(asks):
        ids.append(f"r{index}")
        add(llm, ids[-1], ask)
    emitted = finish(llm)
    return [emitted[request_id] for request_id in ids]


def random_tokens(seed: int, length: int) -> list[int]:
    """A prompt without the end token."""
    tokens: list[int] = np.random.default_rng(seed).integers(1, VOCAB_SIZE, length).tolist()
    return tokens


def prompts() -> list[list[int]]:
    """Short, long, repetitive, and two with one beginning."""
    shared = random_tokens(1, 21)
    return [
        random_tokens(2, 3),
        [9] * 17,
        random_tokens(3, 6) * 4,
        shared + random_tokens(4, 2),
        shared + random_tokens(5, 7),
    ]
