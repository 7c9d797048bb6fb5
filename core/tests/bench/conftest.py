"""A tiny model with a chat template, and records made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from paceline.bench.plan import Cell
from paceline.bench.records import Measurement, RequestRecord, Run

CHAT_TEMPLATE = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of a random Llama over bytes, with a chat template. Its last id ends a text."""
    folder = str(tmp_path_factory.mktemp("tiny_chat"))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=CHAT_TEMPLATE).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    tokens = {"bos_token_id": None, "eos_token_id": 255, "pad_token_id": None}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads, **tokens, initializer_range=0.1)).save_pretrained(folder)
    return folder


@pytest.fixture
def record() -> Callable[..., Measurement]:
    """``(engine, round, seconds, outputs, kind="chat", batch=1, **run) -> Measurement``."""

    def make(
        engine: str,
        round_index: int,
        seconds: float,
        outputs: Sequence[list[int]],
        kind: str = "chat",
        batch: int = 1,
        **fields: int,
    ) -> Measurement:
        requests = [RequestRecord(tokens, 0.5, 0.25 if len(tokens) > 1 else None) for tokens in outputs]
        run = Run(seconds, requests, **{"num_passes": 1, **fields})
        return Measurement(round_index, Cell(kind, batch), engine, run)

    return make
