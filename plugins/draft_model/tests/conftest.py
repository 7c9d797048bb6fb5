"""A toy engine: paged KV that holds tokens, a model whose logits are a hash of the prefix it can see, one view."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from paceline.api import (
    CommittedBatch,
    PluginError,
    ProposeBatch,
    RequestView,
    SamplingFacts,
    TargetFacts,
)

VOCAB_SIZE = 11
PADDED_VOCAB_SIZE = 13  # the logits of ids 11 and 12 are the largest, and must never be drafted
POISON = -7


def hash_floats(*content: Any, size: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(repr(content).encode()).digest()[:8], "big")
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def model_scores(prefix: Sequence[int]) -> np.ndarray:
    """Scores of the next token as a function of every token before it."""
    return hash_floats("model", [int(token) for token in prefix], size=VOCAB_SIZE)


def noise_of(request_id: str, position: int, is_sampled: bool) -> np.ndarray:
    scale = 2.0 if is_sampled else 0.0
    return scale * hash_floats("noise", request_id, int(position), size=VOCAB_SIZE)


@dataclass
class ToyRequest:
    """A request, its KV (the token that made each entry; ``POISON`` where nothing valid lies) and its draft range."""

    request_id: str
    tokens: list[int]
    num_prompt_tokens: int
    capacity: int
    is_sampled: bool = False
    computed: int = 0
    kv: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kv = [POISON] * 400
        self.kv[: self.computed] = self.tokens[: self.computed]

    def forget_kv(self, computed: int) -> None:
        self.computed = computed
        self.kv[computed:] = [POISON] * (len(self.kv) - computed)

    def view(self) -> RequestView:
        tokens = np.array(self.tokens, dtype=np.int64)
        tokens.flags.writeable = False
        facts = SamplingFacts(temperature=float(self.is_sampled), top_k=0, top_p=1.0, min_p=0.0, seed=0)
        return RequestView(
            request_id=self.request_id,
            tokens=tokens,
            num_prompt_tokens=self.num_prompt_tokens,
            sampling=facts,
            trust_domain="",
        )

    def chosen(self, prefix: Sequence[int], sampling: str = "coupled") -> int:
        """The token that the model (and the verifier's rule, if coupled) takes after ``prefix``."""
        is_sampled = self.is_sampled and sampling == "coupled"
        return int(np.argmax(model_scores(prefix) + noise_of(self.request_id, len(prefix), is_sampled)))

    def probability(self, prefix: Sequence[int], token: int) -> float:
        """The model's own, before anything is done to its scores."""
        weights = np.exp(model_scores(prefix).astype(np.float64))
        return float(weights[token] / weights.sum())

    def rollout(self, num_tokens: int, sampling: str = "coupled") -> list[int]:
        text = list(self.tokens)
        for _ in range(num_tokens):
            text.append(self.chosen(text, sampling))
        return text[len(self.tokens) :]


class ToyView:
    """A ``KVView`` that refuses what the contract forbids."""

    def __init__(self, requests: Sequence[ToyRequest]) -> None:
        self.requests = requests
        self.first = np.zeros(len(requests), dtype=np.int64)
        self.written_until = self.computed.copy()

    @property
    def computed(self) -> np.ndarray:
        return np.array([request.computed for request in self.requests], dtype=np.int64)

    @property
    def capacity(self) -> np.ndarray:
        return np.array([request.capacity for request in self.requests], dtype=np.int64)

    def report(self, computed: np.ndarray, first: np.ndarray | None = None) -> None:
        assert first is None
        assert computed.shape == self.computed.shape and computed.dtype == np.int64
        if (
            (computed > self.capacity).any()
            or (computed > self.written_until).any()
            or (computed < self.computed).any()
        ):
            raise PluginError(f"range {computed} of {self.computed}, written {self.written_until}")
        for request, stop in zip(self.requests, computed.tolist(), strict=True):
            request.computed = stop


class ToyModel:
    """A ``PagedModel``: reads the valid range of the KV and the tokens fed, nothing else."""

    vocab_size = PADDED_VOCAB_SIZE

    def __init__(self, max_positions: int = 10_000) -> None:
        self.max_positions = max_positions
        self.tokenizer, self.tokenizer_fingerprint = None, ""
        self.fed: list[dict[str, tuple[int, int]]] = []  # per forward: request -> (start, count)

    def forward(self, view: ToyView, tokens: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> torch.Tensor:
        assert counts.sum() == len(tokens) > 0 and (counts >= 0).all()
        assert {tokens.dtype, starts.dtype, counts.dtype} == {np.dtype(np.int64)}
        assert len(starts) == len(counts) == len(view.requests)
        self.fed.append({})
        rows, offset = [], 0
        for index, request in enumerate(view.requests):
            start, count = int(starts[index]), int(counts[index])
            if count:
                rows.append(self._row(view, index, request, start, tokens[offset : offset + count].tolist()))
                self.fed[-1][request.request_id] = (start, count)
            offset += count
        return torch.from_numpy(np.stack(rows))

    def _row(self, view: ToyView, index: int, request: ToyRequest, start: int, tokens: list[int]) -> np.ndarray:
        stop = start + len(tokens)
        assert start <= request.computed, f"{request.request_id}: a gap between {request.computed} and {start}"
        assert stop <= request.capacity, f"{request.request_id}: no slot for position {stop - 1}"
        assert stop <= self.max_positions, f"{request.request_id}: position {stop - 1} beyond the model's context"
        prefix = request.kv[:start] + tokens
        for position in range(max(start, request.computed), stop):
            request.kv[position] = tokens[position - start]
        view.written_until[index] = max(view.written_until[index], stop)
        return np.concatenate([model_scores(prefix), np.full(PADDED_VOCAB_SIZE - VOCAB_SIZE, 99, dtype=np.float32)])


class ToyEngine:
    """What the core hands a ``draft_model`` proposer for given requests."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.choose_shapes: list[tuple[int, ...]] = []

    def propose_batch(self, requests: Sequence[ToyRequest], budgets: Sequence[int]) -> ProposeBatch:
        def choose(logits: torch.Tensor, positions: np.ndarray) -> torch.Tensor:
            assert logits.dtype == torch.float32 and len(logits) == len(positions) == len(requests)
            self.choose_shapes.append(tuple(logits.shape))
            noise = [noise_of(r.request_id, p, r.is_sampled) for r, p in zip(requests, positions, strict=True)]
            return (logits + torch.from_numpy(np.stack(noise))).argmax(-1)

        return ProposeBatch(
            requests=tuple(request.view() for request in requests),
            budgets=np.array(budgets, dtype=np.int64),
            last_tokens=np.array([request.tokens[-1] for request in requests], dtype=np.int64),
            positions=np.array([len(request.tokens) - 1 for request in requests], dtype=np.int64),
            kv={self.group: ToyView(requests)},
            noise=lambda positions: pytest.fail("the rule is asked, not the noise"),
            choose=choose,
        )

    def committed_batch(
        self, requests: Sequence[ToyRequest], computed: Mapping[str, tuple[int, int]], recomputed: Sequence[str] = ()
    ) -> CommittedBatch:
        spans = np.array([computed[request.request_id] for request in requests], dtype=np.int64).reshape(-1, 2)
        nothing, empty = np.zeros(0, dtype=np.int64), np.zeros_like(spans)
        return CommittedBatch(
            requests=tuple(request.view() for request in requests),
            row_request=nothing,
            positions=nothing,
            tokens=nothing,
            next_tokens=nothing,
            computed=spans,
            restored=empty,
            emitted=empty,
            recomputation=np.array([request.request_id in recomputed for request in requests], dtype=bool),
            kv={self.group: ToyView(requests)},
        )


@pytest.fixture
def toy_request() -> Callable[..., ToyRequest]:
    """``(request id, tokens, ...) -> ToyRequest`` with room for 400 tokens and no draft KV, unless told otherwise."""

    def make(request_id: str, tokens: Sequence[int], **settings: Any) -> ToyRequest:
        defaults = {"num_prompt_tokens": len(tokens), "capacity": 400}
        return ToyRequest(request_id, list(tokens), **{**defaults, **settings})

    return make


@pytest.fixture
def toy_model() -> Callable[..., ToyModel]:
    return ToyModel


@pytest.fixture
def toy_engine() -> ToyEngine:
    return ToyEngine("draft_model")


@pytest.fixture
def target() -> TargetFacts:
    config = {
        "vocab_size": PADDED_VOCAB_SIZE,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
    }
    return TargetFacts(
        config=config,
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        num_layers=3,
        max_model_len=128,
        max_num_seqs=8,
        block_size=16,
        dtype="float32",
        device="cpu",
        numerics="exact",
        tokenizer_fingerprint="",
        weights_fingerprint="ab",
    )


@pytest.fixture(scope="session")
def byte_level() -> Callable[..., Any]:
    """``(characters, *longer tokens, special=()) -> tokenizer``: the bytes of the characters, then the longer ones.

    A longer token is merged from its two halves.
    """

    def make(characters: str, *longer: str, special: Sequence[str] = ()) -> Any:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        written = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        letters = list(dict.fromkeys(letter for char in characters for letter in written.pre_tokenize_str(char)[0][0]))
        longer_names = [written.pre_tokenize_str(text)[0][0] for text in longer]
        names = letters + longer_names
        merges = [(name[: len(name) // 2], name[len(name) // 2 :]) for name in longer_names]
        vocabulary = {name: token_id for token_id, name in enumerate(names)}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
        tokenizer.pre_tokenizer, tokenizer.decoder = written, decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer)

    return make


@pytest.fixture(scope="session")
def sentencepiece() -> Callable[..., Any]:
    """``(pieces, bos=None) -> tokenizer`` with byte tokens first, which puts a space before every text."""

    def make(pieces: Sequence[str], bos: str | None = None) -> Any:
        from tokenizers import Tokenizer, decoders, models, normalizers, processors
        from transformers import PreTrainedTokenizerFast

        names = [f"<0x{byte:02X}>" for byte in range(256)] + [piece for piece in pieces if len(piece) == 1]
        longer = [piece for piece in pieces if len(piece) > 1]
        vocabulary = {name: token_id for token_id, name in enumerate([*names, *longer])}
        merges = [(piece[:-1], piece[-1]) for piece in longer]
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence(steps)
        if bos is not None:
            tokenizer.add_special_tokens([bos])
            start = [(bos, tokenizer.token_to_id(bos))]
            tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=start)
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos)

    return make
