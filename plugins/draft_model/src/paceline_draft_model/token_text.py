"""What tokens are as text: the bytes that each id of a tokenizer adds, whatever marks its kind writes them with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["TokenBytes", "TokenizerKind", "read_tokens", "start_ids", "token_names", "tokenizer_kind"]

_SPACE_MARK = "\u2581"


class TokenizerKind(StrEnum):
    """How a vocabulary writes bytes as strings."""

    BYTE_LEVEL = "byte-level"
    SENTENCEPIECE = "sentencepiece"
    LITERAL = "literal"


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """A token without the marks of its vocabulary.

    Attributes:
        content: The bytes that it adds to a text; for a special token, its name.
        is_special: Whether it controls rather than adds text.
        is_byte: Whether it is a byte written by its number, which is the second choice for a character.
    """

    content: bytes
    is_special: bool = False
    is_byte: bool = False


def token_names(tokenizer: Any) -> dict[int, str]:
    """The string of every id, as the vocabulary writes it."""
    return {token_id: name for name, token_id in tokenizer.get_vocab().items()}


def tokenizer_kind(tokenizer: Any) -> TokenizerKind:
    """Told from the parts of a fast tokenizer; one without them is told by its space mark."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        has_mark = any(name.startswith(_SPACE_MARK) for name in tokenizer.get_vocab())
        return TokenizerKind.SENTENCEPIECE if has_mark else TokenizerKind.LITERAL
    content = json.loads(backend.to_str())
    parts = list(_parts([content["decoder"], content["pre_tokenizer"]]))
    types = {part["type"] for part in parts}
    if "ByteLevel" in types:
        return TokenizerKind.BYTE_LEVEL
    replaces = any(part["type"] == "Replace" and part["pattern"] == {"String": _SPACE_MARK} for part in parts)
    has_mark = replaces or not types.isdisjoint({"Metaspace", "ByteFallback"})
    return TokenizerKind.SENTENCEPIECE if has_mark else TokenizerKind.LITERAL


def _parts(node: Any) -> Iterator[dict[str, Any]]:
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        if isinstance(child, dict) and isinstance(child.get("type"), str):
            yield child
        yield from _parts(child)


def read_tokens(tokenizer: Any) -> dict[int, TokenBytes]:
    """The bytes of every id of a tokenizer."""
    kind, added = tokenizer_kind(tokenizer), tokenizer.added_tokens_decoder
    tokens = {}
    for token_id, name in token_names(tokenizer).items():
        if token_id in added:
            tokens[token_id] = TokenBytes(name.encode(), is_special=bool(added[token_id].special))
        else:
            tokens[token_id] = _read(name, kind)
    return tokens


def _read(name: str, kind: TokenizerKind) -> TokenBytes:
    if kind is TokenizerKind.BYTE_LEVEL and all(char in _BYTE_OF_CHAR for char in name):
        return TokenBytes(bytes(_BYTE_OF_CHAR[char] for char in name))
    if kind is TokenizerKind.SENTENCEPIECE:
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            return TokenBytes(bytes([int(name[3:5], 16)]), is_byte=True)
        return TokenBytes(name.replace(_SPACE_MARK, " ").encode())
    return TokenBytes(name.encode())


def _bytes_of_chars() -> dict[str, int]:
    """Byte-level vocabularies write printable bytes as themselves, and the others as characters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    written_as_others = {chr(256 + number): byte for number, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | written_as_others


_BYTE_OF_CHAR = _bytes_of_chars()


def start_ids(tokenizer: Any) -> list[int]:
    """What the tokenizer puts before every text: its first-token id, or nothing."""
    first = tokenizer.encode("a", add_special_tokens=True)[:1]
    return first if first == [tokenizer.bos_token_id] else []
