"""The tiny model on which plugins are tried: random weights, a tokenizer whose tokens are bytes."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

__all__ = ["END_TOKEN_ID", "MAX_MODEL_LEN", "VOCAB_SIZE", "tiny_model", "work_folder"]

END_TOKEN_ID = 0
VOCAB_SIZE = 257  # the end token and the bytes; no multiple of 8, so that masks have spare bits
MAX_MODEL_LEN = 96


@functools.cache
def work_folder() -> Path:
    """A folder of this process, for what the kit makes; removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="paceline-kit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def tiny_model() -> str:
    """Folder of a random Llama: vocabulary 257, hidden size 32, 2 layers, float32. Made once in a process."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=END_TOKEN_ID,
        pad_token_id=None,
    )
    folder = work_folder() / "model"
    logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        LlamaForCausalLM(config).save_pretrained(folder)
    _save_tokenizer(folder)
    return str(folder)


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|end|>": END_TOKEN_ID, **{letter: index for index, letter in enumerate(letters, start=1)}}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.add_special_tokens(["<|end|>"])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>").save_pretrained(folder)
