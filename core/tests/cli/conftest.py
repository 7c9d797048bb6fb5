"""The command line in this process, and a tiny model that reads and writes bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from paceline.cli import app

NAN_BYTE = ord("!")
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['content'] }}>{% endfor %}{% if add_generation_prompt %}a{% endif %}"
)


def save_byte_tokenizer(folder: Path, chat_template: str | None = None) -> None:
    """One token for each byte, none of them special."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=chat_template).save_pretrained(folder)


def save_alphabet_model(folder: Path, ids: Callable[[str], list[int]]) -> None:
    """A Llama that emits the next letter of the alphabet after each letter, and NaN after an exclamation mark."""
    from transformers import LlamaConfig, LlamaForCausalLM

    none = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    sizes = {"vocab_size": 256, "hidden_size": 256, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 128}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, **none, tie_word_embeddings=False))
    letters = ids("abcdefghijklmnopqrstuvwxyza")
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(256))
        model.lm_head.weight.zero_()
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight[letters[1:], letters[:-1]] = 2.0
        model.model.embed_tokens.weight[ids("!")[0]] = torch.nan
    model.save_pretrained(folder)


@pytest.fixture(scope="session")
def alphabet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that knows the alphabet, with a byte tokenizer and a chat template."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("alphabet")
    save_byte_tokenizer(folder, CHAT_TEMPLATE)
    save_alphabet_model(folder, AutoTokenizer.from_pretrained(folder).encode)
    return str(folder)


@pytest.fixture(scope="session")
def mute(alphabet: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same model without a tokenizer."""
    folder = tmp_path_factory.mktemp("mute")
    for file in Path(alphabet).iterdir():
        if "token" not in file.name and "chat" not in file.name:
            (folder / file.name).write_bytes(file.read_bytes())
    return str(folder)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``(*arguments, input=None) -> result``; messages are not wrapped."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERMINAL_WIDTH", "400")

    def invoke(*arguments: str, input: str | None = None) -> Any:
        return CliRunner().invoke(app, arguments, input=input)

    return invoke
