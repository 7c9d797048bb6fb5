"""Tiny targets that can be asked, corpora of their answers, and what is needed to train on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.session import SessionContext
from paceline_eagle.training.corpus import answer, tokenized
from paceline_eagle.training.dataset import Dataset, choose_vocabulary, load_dataset
from paceline_eagle.training.initial import TargetWeights, head_config, initial_head
from paceline_eagle.training.options import TrainOptions
from paceline_eagle.training.teacher import teacher_of
from paceline_eagle.training.trainer import Recipe, Trainer

VOCAB_SIZE = 64
LAYERS = (0, 1, 2)
ANSWER_TOKENS = 10
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of a tiny random Llama with a tokenizer ("t5" is token 5) and a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"t{token}": token for token in range(VOCAB_SIZE)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    tokenizer.chat_template = "{% for message in messages %}t1 {{ message['content'] }} t2{% endfor %}"
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Prompts of different lengths."""
    draw = np.random.default_rng(0)
    return [" ".join(f"t{token}" for token in draw.integers(3, VOCAB_SIZE, size=3 + i % 4)) for i in range(12)]


@pytest.fixture
def prompt_file(tmp_path: Path, texts: list[str]) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(texts))
    return file


@pytest.fixture
def options(target: str, tmp_path: Path, prompt_file: Path) -> Callable[..., TrainOptions]:
    """``(**changes) -> TrainOptions`` of a run that takes about a second."""
    small: dict[str, Any] = {
        "target": target,
        "output": tmp_path / "head",
        "prompts": prompt_file,
        "num_prompts": 12,
        "num_held_out": 3,
        "answer_tokens": ANSWER_TOKENS,
        "layers": LAYERS,
        "draft_vocab_size": 48,
        "num_epochs": 4,
        "learning_rate": 5e-3,
        "batch_tokens": 40,
        "numerics": "exact",
        "max_num_seqs": 4,
    }
    return lambda **changes: TrainOptions(**{**small, **changes})


def recording(target: str, folder: Path, **engine: Any) -> Any:
    """A session that records into ``folder``."""
    proposer = {"folder": str(folder), "layers": [*LAYERS, "final"]}
    settings = {"enable_prefix_caching": False, "numerics": "exact", "max_num_seqs": 4, **engine}
    return SessionContext().open(target, proposer="eagle:recorder", proposer_options=proposer, **settings)


@pytest.fixture
def record(target: str) -> Callable[..., Any]:
    """``(folder, **engine options) -> Session`` that records."""
    return lambda folder, **engine: recording(target, folder, **engine)


@dataclass(frozen=True)
class Corpus:
    """A folder of recorded answers, and the prompts by digest."""

    folder: Path
    prompts: dict[str, list[int]]


@pytest.fixture(scope="session")
def corpus(target: str, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """All prompts answered."""
    folder = tmp_path_factory.mktemp("corpus")
    options = TrainOptions(target=target, output=folder, answer_tokens=ANSWER_TOKENS)
    with recording(target, folder) as session:
        prompts = tokenized(session, texts)
        answer(session, prompts, folder, options)
    return Corpus(folder, prompts)


@pytest.fixture
def dataset(corpus: Corpus) -> Dataset:
    """Nine samples to learn from and three held out."""
    return load_dataset(corpus.folder, LAYERS, corpus.prompts, 3)


@pytest.fixture(scope="session")
def plain_session(target: str) -> Any:
    """A session without a proposer."""
    with SessionContext().open(target, max_num_seqs=4) as session:
        yield session


@pytest.fixture
def make_trainer(plain_session: Any, dataset: Dataset, tmp_path: Path) -> Callable[..., Trainer]:
    """``(state="state.pt", **recipe) -> Trainer`` of a new head; the same arguments, the same trainer."""
    usual: dict[str, Any] = {
        "seed": 1,
        "num_epochs": 4,
        "learning_rate": 5e-3,
        "batch_rows": 40,
        "ttt_steps": 3,
        "ttt_share": 0.5,
        "feature_weight": 0.1,
        "num_drafts": 3,
        "corpus": "c",
    }

    def make(state: str = "state.pt", **recipe: Any) -> Trainer:
        vocabulary = choose_vocabulary(dataset, 48)
        weights = TargetWeights(plain_session.open_checkpoint())
        config = head_config(plain_session.facts, LAYERS, len(vocabulary.ids))
        head = initial_head(config, weights, 3, vocabulary.ids)
        teacher = teacher_of(plain_session, weights, vocabulary.ids, dataset.training[0].features["final"])
        return Trainer(head, teacher, dataset, Recipe(**{**usual, **recipe}), tmp_path / state, "cpu")

    return make
