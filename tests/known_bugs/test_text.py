"""Text that comes token by token: whole characters, and stop strings that nobody sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.engine.outputs import StreamDelta

NUM_POSITIONS = 96
PROMPT = {"prompt_token_ids": [0]}


@pytest.fixture(scope="session")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], str]:
    """``text -> directory`` of a GPT-2 that emits byte ``i`` of the text at position ``i``, whatever the tokens."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bytes_to_unicode = dict(zip(_byte_order(), alphabet_in_byte_order(alphabet), strict=True))
    vocab = {bytes_to_unicode[byte]: byte for byte in range(256)}

    def path(text: bytes) -> str:
        sizes = {"vocab_size": 256, "n_positions": NUM_POSITIONS, "n_embd": NUM_POSITIONS, "n_layer": 1, "n_head": 2}
        none = {"bos_token_id": None, "eos_token_id": None}
        model = GPT2LMHeadModel(GPT2Config(**sizes, **none, tie_word_embeddings=False))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            model.transformer.ln_f.weight.fill_(1.0)
            model.transformer.wpe.weight.copy_(torch.eye(NUM_POSITIONS))
            for position, byte in enumerate(text):
                model.lm_head.weight[byte, position] = 4.0
        folder = tmp_path_factory.mktemp("speaker")
        model.save_pretrained(folder)
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
        return str(folder)

    return path


def _byte_order() -> list[int]:
    """Bytes that stand for themselves first, then the others: as the byte-level alphabet is numbered."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return printable + [byte for byte in range(256) if byte not in printable]


def alphabet_in_byte_order(alphabet: Sequence[str]) -> list[str]:
    printable = [chr(byte) for byte in _byte_order()[:188]]
    return printable + sorted(set(alphabet) - set(printable))


def told(text: bytes) -> dict[str, Any]:
    """An oracle that drafts the true bytes, three at a time, so that runs end inside characters."""
    truth = [0, *text, *[0] * (NUM_POSITIONS - 1 - len(text))]
    return {"proposer": "probes:oracle", "proposer_options": {"truth": [truth]}, "num_speculative_tokens": 3}


def streamed(llm: LLM, params: SamplingParams) -> list[StreamDelta]:
    return list(llm.generate(PROMPT, params, stream=True))


FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
CHARACTERS = f"\U0001f44d\U0001f3fd {FAMILY} \u4f60\u597d e\u0301 \u05e9\u05dc\u05d5\u05dd"


@pytest.mark.parametrize("speculates", [False, True])
def test_characters_stream_whole(speaker: Callable[[bytes], str], probes: None, speculates: bool) -> None:
    """B057: pieces join to the whole decode, and only a cut or invalid tail is U+FFFD."""
    text = CHARACTERS.encode()
    with LLM(speaker(text), **(told(text) if speculates else {})) as llm:
        for num_tokens in (len(text), len(text) - 1, 5, 2):
            params = SamplingParams(temperature=0.0, max_tokens=num_tokens)
            (output,) = llm.generate(PROMPT, params, use_tqdm=False)
            pieces = streamed(llm, params)
            wanted = text[:num_tokens].decode("utf-8", "replace")
            assert output.outputs[0].text == "".join(piece.text for piece in pieces) == wanted
            assert not any("\ufffd" in piece.text[:-1] for piece in pieces)
            assert [t for piece in pieces for t in piece.token_ids] == output.outputs[0].token_ids
            assert pieces[-1].finished.outputs[0].text == wanted
        assert (llm.engine.stats.num_accepted_tokens > 0) == speculates


def test_invalid_bytes_do_not_stall_the_stream(speaker: Callable[[bytes], str]) -> None:
    """B057: bytes that are no character come as U+FFFD, and what follows them comes too."""
    text = b"a\xff\xfe\xff\xff\xff\xff\xffb\xffc"
    with LLM(speaker(text)) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=len(text))
        assert "".join(piece.text for piece in streamed(llm, params)) == text.decode("utf-8", "replace")


@pytest.mark.parametrize("speculates", [False, True])
@pytest.mark.parametrize("includes_stop", [False, True])
@pytest.mark.parametrize(
    ("stop", "at", "found"),
    [
        ("STOP", 6, "STOP"),
        (" ST", 5, " ST"),
        ("o S", 4, "o S"),
        (["x", "STOP", "rld", "OP "], 6, "STOP"),
        (["nowhere"], 16, None),
    ],
)
def test_stop_strings(
    speaker: Callable[[bytes], str],
    probes: None,
    stop: str | list[str],
    at: int,
    found: str | None,
    includes_stop: bool,
    speculates: bool,
) -> None:
    """B058: the output ends before the stop string, streamed or not, and no part of it is shown."""
    text = b"hello STOP world"
    params = SamplingParams(temperature=0.0, max_tokens=len(text), stop=stop, include_stop_str_in_output=includes_stop)
    with LLM(speaker(text), **(told(text) if speculates else {})) as llm:
        (output,) = llm.generate(PROMPT, params, use_tqdm=False)
        pieces = streamed(llm, params)
    completion = output.outputs[0]
    wanted = text.decode()[:at] + (found or "") * includes_stop
    assert completion.text == "".join(piece.text for piece in pieces) == wanted
    assert (completion.finish_reason, completion.stop_reason) == (("stop", found) if found else ("length", None))
    assert len(completion.token_ids) == (at + len(found) if found else len(text))


def test_a_stop_string_counts_from_min_tokens_on(speaker: Callable[[bytes], str]) -> None:
    text = b"a STOP b STOP c"
    params = SamplingParams(temperature=0.0, max_tokens=len(text), stop="STOP", min_tokens=8)
    with LLM(speaker(text)) as llm:
        (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    assert output.outputs[0].text == "a STOP b "


def test_closing_a_stream_ends_its_request(speaker: Callable[[bytes], str]) -> None:
    with LLM(speaker(b"hello")) as llm:
        stream = llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=50), stream=True)
        assert next(stream).text == "h"
        stream.close()
        assert not llm.engine.has_requests
        assert llm.engine.kv.num_used == 0


def test_samples_stream_side_by_side(speaker: Callable[[bytes], str]) -> None:
    with LLM(speaker(b"hello")) as llm:
        pieces = streamed(llm, SamplingParams(temperature=0.0, max_tokens=5, n=2))
    for index in (0, 1):
        assert "".join(piece.text for piece in pieces if piece.index == index) == "hello"
    assert [len(piece.finished.outputs) for piece in pieces if piece.finished] == [2]
