"""A small byte-level tokenizer, constraints built as the host builds them, and what the core hands them."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline.api import ConstrainedRequest, Constraint, ConstraintBatch, TargetFacts
from paceline_llguidance.plugin import paceline_constraints

SPECIALS = ["<|end|>", "<|stop|>", "<|pad|>"]  # ids 0, 1 and 2
CORPUS = '{"name": "value", "number": 12.5, "true": false, "items": [1, 2, 3], "null": null} hello world, the quick fox'


@pytest.fixture(scope="session")
def tokenizer() -> SimpleNamespace:
    """What a transformers tokenizer is to the plugin: 3 special tokens, the 256 bytes, and 42 words."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=301, initial_alphabet=letters, special_tokens=SPECIALS, show_progress=False
    )
    backend.train_from_iterator([CORPUS] * 5, trainer)
    return SimpleNamespace(backend_tokenizer=backend)


@pytest.fixture(scope="session")
def vocab_size(tokenizer: SimpleNamespace) -> int:
    size = tokenizer.backend_tokenizer.get_vocab_size()
    assert size % 8  # the last byte of a mask is not full
    return size


@pytest.fixture(scope="session")
def encode(tokenizer: SimpleNamespace) -> Callable[[str], list[int]]:
    """``(text) -> token ids``."""
    return lambda text: tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="session")
def decode(tokenizer: SimpleNamespace) -> Callable[[Sequence[int]], str]:
    """``(token ids) -> text``, special tokens included."""
    return lambda ids: tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False)


@pytest.fixture(scope="session")
def random_schema() -> Callable[..., dict[str, Any]]:
    """``(random.Random) -> JSON schema``."""
    return runpy.run_path(str(Path(__file__).parent / "random_schemas.py"))["random_schema"]


@pytest.fixture
def target(vocab_size: int) -> TargetFacts:
    return TargetFacts(
        config={},
        vocab_size=vocab_size,
        hidden_size=64,
        num_layers=2,
        max_model_len=128,
        max_num_seqs=8,
        block_size=16,
        dtype="float32",
        device="cpu",
        numerics="exact",
        tokenizer_fingerprint="",
        weights_fingerprint="00",
    )


@pytest.fixture
def build(tokenizer: SimpleNamespace, target: TargetFacts) -> Callable[..., Constraint]:
    """``(**options) -> constraint``."""
    (spec,) = paceline_constraints()

    def make(**options: Any) -> Constraint:
        return spec.build(spec.options(**options), SimpleNamespace(target=target, tokenizer=tokenizer))

    return make


def request_of(
    asked: Any, output: Sequence[int] = (), request_id: str = "r", ends: tuple[int, ...] = (0,)
) -> ConstrainedRequest:
    tokens = np.asarray(output, dtype=np.int64)
    tokens.flags.writeable = False
    return ConstrainedRequest(
        request_id=request_id, asked=asked, end_token_ids=ends, prompt=np.ones(1, dtype=np.int64), output=tokens
    )


@pytest.fixture(scope="session")
def request_for() -> Callable[..., ConstrainedRequest]:
    """``(asked, output, request id, end token ids) -> request``."""
    return request_of


@pytest.fixture(scope="session")
def batch_of() -> Callable[..., ConstraintBatch]:
    """``((request, its drafted sequences), ...) -> batch``."""

    def make(*asked_rows: tuple[ConstrainedRequest, Sequence[Sequence[int]]]) -> ConstraintBatch:
        rows = [row for _, own in asked_rows for row in own]
        drafted = np.full((len(rows), max(map(len, rows), default=0)), -1, dtype=np.int64)
        for row, tokens in zip(drafted, rows, strict=True):
            row[: len(tokens)] = tokens
        row_request = [index for index, (_, own) in enumerate(asked_rows) for _ in own]
        requests = tuple(request for request, _ in asked_rows)
        return ConstraintBatch(requests=requests, row_request=np.array(row_request, dtype=np.int64), drafted=drafted)

    return make


@pytest.fixture
def allowed(batch_of: Callable[..., ConstraintBatch]) -> Callable[..., set[int]]:
    """``(constraint, request, drafted) -> ids that may come next``."""

    def ids(constraint: Constraint, request: ConstrainedRequest, drafted: Sequence[int] = ()) -> set[int]:
        masks = constraint.masks(batch_of((request, [drafted])))
        return set(np.flatnonzero(np.unpackbits(masks[0], bitorder="little")).tolist())

    return ids
