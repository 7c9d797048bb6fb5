"""A tiny model with a tokenizer, and foreign programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent


@pytest.fixture(scope="session")
def alphabet(script: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[str]], str]:
    """``(circle of letters) -> directory`` of a model that goes round that circle, with one token for each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}

    def path(letters: Sequence[str]) -> str:
        following = dict(zip(letters, [*letters[1:], letters[0]], strict=True))
        chain = {vocab[letter]: vocab[after] for letter, after in following.items()}
        folder = script(chain, vocab_size=256, max_position_embeddings=256)
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
        return folder

    return path


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[[str, str], list[str]]:
    """``(file, model) -> lines printed``: the program with only its import line and its model's name changed."""

    def run(name: str, model: str) -> list[str]:
        source = (PROGRAMS / name).read_text()
        for foreign, own in (("from vllm import", "from paceline import"), ("facebook/opt-6.7b", model)):
            assert source.count(foreign) == 1
            source = source.replace(foreign, own)
        program = tmp_path / name
        program.write_text(source)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-W", "error", str(program)], capture_output=True, text=True, env=environment, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr and "Warning" not in done.stderr
        return done.stdout.splitlines()

    return run
