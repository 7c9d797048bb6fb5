"""An engine on a runner that stands for a model, tiny checkpoints, and a distribution of test plugins."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from pydantic import BaseModel

from paceline.api import (
    CommittedBatch,
    Constraint,
    ConstraintCapabilities,
    ConstraintSpec,
    ControllerCapabilities,
    ControllerSpec,
    Drafts,
    DraftShape,
    EvictionCapabilities,
    EvictionPolicySpec,
    KVGroup,
    Observer,
    ObserverCapabilities,
    ObserverSpec,
    ProposeBatch,
    Proposer,
    ProposerCapabilities,
    ProposerSpec,
    ReleaseReason,
    RequestFacts,
    RequestView,
    SpeculationController,
    TargetFacts,
)
from paceline.config import EngineConfig
from paceline.engine import build
from paceline.engine.engine import Engine
from paceline.engine.fixed import Fixed
from paceline.engine.outputs import RequestOutput
from paceline.host.kinds import KINDS
from paceline.host.loading import Loaded, LoadedPlugins
from paceline.kv import invariants
from paceline.kv.lru import LRUPolicy
from paceline.kv.manager import KVManager
from paceline.kv.storage import KVStorage
from paceline.model.runner import ForwardOutput
from paceline.ops.batch import AttentionBatch
from paceline.ops.kv import write_kv
from paceline.ops.select import select_ops
from paceline.sampling.params import SamplingParams

VOCAB_SIZE = 16
CPU = torch.device("cpu")


def next_token(tokens: Sequence[int]) -> int:
    """What the stand-in for a model says after ``tokens``; it depends on every one of them and on their order."""
    state = 0
    for token in tokens:
        state = (state * 31 + int(token) + 1) % 1009
    return state % VOCAB_SIZE


def continuation(prompt: Sequence[int], num_tokens: int, stop_ids: Sequence[int] = ()) -> list[int]:
    """What must be emitted after ``prompt``: ``num_tokens``, or fewer if a stop comes first."""
    known = list(prompt)
    for _ in range(num_tokens):
        known.append(next_token(known))
        if known[-1] in stop_ids:
            break
    return known[len(prompt) :]


class RecordingRunner:
    """Stands for a model: the KV entry of a token is the token and its position, logits point to ``next_token``.

    Each row reads the entries that its batch lets it read, so a wrong block, slot, path or write is a wrong token or a
    failed assertion. ``nan_tokens`` give NaN logits.
    """

    def __init__(self, layers: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.k, self.v = layers[0]
        self.nan_tokens: set[int] = set()
        self.passes: list[np.ndarray] = []

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch, logit_rows: torch.Tensor
    ) -> ForwardOutput:
        entry = (-1, 1, 1)
        write_kv(self.k, self.v, tokens.double().view(entry), positions.double().view(entry), batch.slots)
        self.passes.append(batch.row_seq)
        logits = torch.zeros(len(tokens), VOCAB_SIZE)
        for row in range(len(tokens)):
            seen = self._read(row, batch)
            assert seen[-1] == int(tokens[row]) and len(seen) - 1 == int(positions[row])
            logits[row, next_token(seen)] = 10.0
            if seen[-1] in self.nan_tokens:
                logits[row] = torch.nan
        features = {"tokens": tokens[:, None].float()}
        return ForwardOutput(logits=logits[logit_rows], features=features)

    def _read(self, row: int, batch: AttentionBatch) -> list[int]:
        places = np.arange(batch.visible[row])
        if batch.paths is not None:
            places = np.concatenate([places, batch.paths[row][batch.paths[row] >= 0]])
        blocks = batch.block_tables[int(batch.row_seq[row]), places // batch.block_size].numpy()
        slots = blocks * batch.block_size + places % batch.block_size
        assert self.v.view(-1)[slots].tolist() == list(range(len(places))), "a row reads KV of other positions"
        return [int(token) for token in self.k.view(-1)[slots]]


class ScriptedProposer(Proposer):
    """Drafts what ``draft(request, budget)`` gives, and logs what it is told."""

    def __init__(self, draft: Callable[[RequestView, int], Any]) -> None:
        self.draft = draft
        self.proposed: list[ProposeBatch] = []
        self.observed: list[CommittedBatch] = []
        self.released: list[tuple[tuple[str, ...], ReleaseReason]] = []
        self.num_closed = 0

    def propose(self, batch: ProposeBatch) -> Drafts:
        self.proposed.append(batch)
        rows = [self.draft(request, int(n)) for request, n in zip(batch.requests, batch.budgets, strict=True)]
        if rows and isinstance(rows[0], tuple):
            return Drafts.from_lists([tokens for tokens, _ in rows], [parents for _, parents in rows])
        return Drafts.from_lists(rows)

    def observe(self, committed: CommittedBatch) -> None:
        self.observed.append(committed)

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:
        self.released.append((request_ids, reason))

    def close(self) -> None:
        self.num_closed += 1


def right_drafts(request: RequestView, budget: int) -> list[int]:
    """The true continuation."""
    return continuation(request.tokens.tolist(), budget)


class NoOptions(BaseModel):
    """Plugins of the harness are made by the test."""


def as_plugin(kind: str, spec_class: Any, made: Any, described: Any, name: str = "") -> Loaded:
    """An object as the plugin ``name`` (``kind`` if not given) of the distribution "harness", ready to be built."""
    name = name or kind
    spec = spec_class(
        name=name,
        summary=name,
        options=NoOptions,
        requires_api=">=0.1",
        describe=lambda options, target: described,
        build=lambda options, context: made,
    )
    place = {"distribution": "harness", "version": "1", "entry_point": f"{name} = harness", "name": name}
    return Loaded(KINDS[kind], SimpleNamespace(**place), spec, NoOptions())


@dataclass
class Harness:
    """An engine and its parts."""

    engine: Engine
    kv: KVManager
    storage: KVStorage
    runner: RecordingRunner
    proposer: Any
    num_added: int = 0
    outputs: dict[str, RequestOutput] = field(default_factory=dict)
    emitted: dict[str, list[int]] = field(default_factory=dict)

    def add(self, prompt: Sequence[int], request_id: str = "", draft_limit: int | None = None, **params: Any) -> str:
        request_id = request_id or f"r{self.num_added}"
        facts_of = {name: params.pop(name) for name in ("cache_salt", "trust_domain", "metadata") if name in params}
        facts = RequestFacts(request_id=request_id, num_prompt_tokens=len(prompt), **facts_of)
        wanted = SamplingParams(**{"temperature": 0.0, **params})
        self.engine.add_request(facts, np.array(prompt, dtype=np.int64), wanted, draft_limit=draft_limit)
        self.num_added += 1
        return request_id

    def step(self) -> None:
        result = self.engine.step()
        invariants.check(self.kv)
        for request_id, tokens in result.new_tokens.items():
            self.emitted.setdefault(request_id, []).extend(tokens.tolist())
        for output in result.finished:
            assert output.request_id not in self.outputs
            self.outputs[output.request_id] = output

    def run(self, most_steps: int = 500) -> dict[str, RequestOutput]:
        for _ in range(most_steps):
            if not self.engine.has_requests:
                return self.outputs
            self.step()
        raise AssertionError(f"requests live after {most_steps} steps")

    def abort(self, request_id: str) -> RequestOutput | None:
        output = self.engine.abort(request_id)
        invariants.check(self.kv)
        if output is not None:
            self.outputs[request_id] = output
        return output

    def tokens(self, request_id: str) -> list[int]:
        return self.outputs[request_id].outputs[0].token_ids


class FakeClock:
    """A second a look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def stand_in(eos_token_ids: tuple[int, ...]) -> Any:
    """What the engine asks of a loaded model: a Llama of one layer whose keys and values have one number."""
    from transformers import LlamaConfig

    sizes = {
        "hidden_size": 1,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 1,
    }
    return SimpleNamespace(
        config=LlamaConfig(vocab_size=VOCAB_SIZE, **sizes),
        dtype=torch.float64,
        device=CPU,
        numerics="fast",
        tokenizer=None,
        native=None,
        eos_token_ids=eos_token_ids,
        weights_fingerprint="w",
    )


def facts(config: EngineConfig, max_model_len: int) -> TargetFacts:
    return TargetFacts(
        config={},
        vocab_size=VOCAB_SIZE,
        hidden_size=1,
        num_layers=1,
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        block_size=config.block_size,
        dtype="float64",
        device="cpu",
        numerics="fast",
        tokenizer_fingerprint="",
        weights_fingerprint="w",
    )


def entries(name: str, fingerprint: str = "f") -> KVGroup:
    """A group whose entries are a token and a position."""
    sizes = {"num_layers": 1, "num_kv_heads": 1, "key_size": 1, "value_size": 1, "dtype": "float64"}
    return KVGroup(name=name, fingerprint=fingerprint, **sizes)


def build_harness(
    *,
    draft: Callable[[RequestView, int], Any] | None = None,
    proposer: Proposer | None = None,
    controller: SpeculationController | None = None,
    controller_wants: ControllerCapabilities | None = None,
    observers: Sequence[tuple[Observer, ObserverCapabilities]] = (),
    constraints: Sequence[tuple[Constraint, ConstraintCapabilities]] = (),
    num_blocks: int = 32,
    block_size: int = 4,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 64,
    eos_token_ids: tuple[int, ...] = (),
    seed: int | None = 0,
    num_speculative_tokens: int = 4,
    enable_prefix_caching: bool = True,
    **capabilities: Any,
) -> Harness:
    """An engine of real parts on a ``RecordingRunner``; keywords left over are the proposer's capabilities."""
    if proposer is None and draft is not None:
        proposer = ScriptedProposer(draft)
    described = ProposerCapabilities(**{"max_tokens": 64 if proposer else 0, **capabilities})
    plugins = [
        as_plugin("eviction_policy", EvictionPolicySpec, LRUPolicy(), EvictionCapabilities()),
        as_plugin(
            "controller",
            ControllerSpec,
            controller or Fixed(num_speculative_tokens),
            controller_wants or ControllerCapabilities(),
        ),
        *(
            as_plugin("constraint", ConstraintSpec, constraint, enforced, f"constraint_{number}")
            for number, (constraint, enforced) in enumerate(constraints)
        ),
        *(as_plugin("observer", ObserverSpec, observer, wants) for observer, wants in observers),
    ]
    if proposer is not None:
        plugins.append(as_plugin("proposer", ProposerSpec, proposer, described))
    config = EngineConfig(
        model="stand-in",
        proposer="harness" if proposer else None,
        num_speculative_tokens=num_speculative_tokens if proposer else None,
        num_gpu_blocks_override=num_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
        seed=seed,
    )
    parts = build._Parts(
        config,
        LoadedPlugins(tuple(plugins)),
        stand_in(eos_token_ids),
        facts(config, max_model_len),
        described,
        FakeClock(),
        select_ops("fast", CPU),
    )
    made: list[Any] = []

    class Storage(KVStorage):
        def __init__(self, *sizes: Any) -> None:
            super().__init__(*sizes)
            made.append(self)

    def runner(loaded: Any, layers: Any, ops: Any, taps: Any) -> RecordingRunner:
        made.append(RecordingRunner(layers))
        return made[-1]

    with patch.object(build, "ModelRunner", runner), patch.object(build, "KVStorage", Storage):
        engine, _ = build._engine(parts, next((plugin for plugin in plugins if plugin.kind.name == "proposer"), None))
    return Harness(engine, engine.kv, *made, proposer)


@pytest.fixture(scope="session")
def harness() -> Callable[..., Harness]:
    """See ``build_harness``."""
    return build_harness


@pytest.fixture(scope="session")
def fake() -> SimpleNamespace:
    """The stand-in model and what goes with it."""
    return SimpleNamespace(
        next_token=next_token,
        continuation=continuation,
        right_drafts=right_drafts,
        entries=entries,
        ScriptedProposer=ScriptedProposer,
        VOCAB_SIZE=VOCAB_SIZE,
        TREE=DraftShape.TREE,
    )


TINY_SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """``(seed=0, nan_token=None, **config) -> directory`` of a tiny random Llama; made once."""
    made: dict[tuple[Any, ...], str] = {}

    def path(seed: int = 0, nan_token: int | None = None, **config: Any) -> str:
        key = (seed, nan_token, *sorted(config.items()))
        if key not in made:
            from transformers import LlamaConfig, LlamaForCausalLM

            torch.manual_seed(seed)
            model = LlamaForCausalLM(LlamaConfig(**TINY_SIZES | config))
            if nan_token is not None:
                with torch.no_grad():
                    model.model.embed_tokens.weight[nan_token] = torch.nan
            folder = tmp_path_factory.mktemp("tiny")
            model.save_pretrained(folder)
            made[key] = str(folder)
        return made[key]

    return path


@pytest.fixture(scope="session")
def chain_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """``(chain, second={}, **config) -> directory`` of a Llama that emits ``chain[t]`` after token ``t``."""

    def path(chain: Mapping[int, int], second: Mapping[int, int] | None = None, **config: Any) -> str:
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(**TINY_SIZES | {"vocab_size": 64, "tie_word_embeddings": False} | config))
        with torch.no_grad():
            model.model.embed_tokens.weight.copy_(torch.eye(64))
            model.lm_head.weight.zero_()
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
            for score, follow in ((2.0, chain), (1.0, second or {})):
                for token, following in follow.items():
                    model.lm_head.weight[following, token] = score
        folder = tmp_path_factory.mktemp("chain")
        model.save_pretrained(folder)
        return str(folder)

    return path


@pytest.fixture(scope="session")
def test_plugins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Installs the distribution ``paceline-engine-probes`` (entry point ``engine_probes``) and gives its module."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(Path(__file__).with_name("engine_probes.py"), site)
    info = site / "paceline_engine_probes-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paceline-engine-probes\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[paceline.plugins]\nengine_probes = engine_probes\n")
    sys.path.insert(0, str(site))
    import engine_probes

    yield engine_probes
    sys.path.remove(str(site))
    del sys.modules["engine_probes"]
