"""Cache identity: the canonical encoding of named fields, and the digests made of it.

Two requests may share KV only if every field is equal. Digests depend on content alone: not on the process, the hash
seed, the order of contributors or the machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.api.facts import RequestFacts
from paceline.api.identity import FieldValue, IdentityContributor
from paceline.api.proposers import KVGroup
from paceline.kv.boundary import Boundary, no_boundary
from paceline.kv.errors import IdentityError

__all__ = ["FORMAT_VERSION", "CoreIdentity", "IdentityBuilder", "block_key", "canonical", "component_key", "digest"]

FORMAT_VERSION = 1
_RESERVED_NAMES = ("core", "request")
_BLOCK_TAG = b"paceline.kv.block"
_COMPONENT_TAG = b"paceline.kv.component"


def _prefixed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _encode_value(name: str, value: FieldValue) -> bytes:
    if value is None:
        return b"n" + _prefixed(b"")
    if isinstance(value, bool):
        return b"t" + _prefixed(b"1" if value else b"0")
    if isinstance(value, int):
        return b"i" + _prefixed(b"%d" % value)
    if isinstance(value, str):
        return b"s" + _prefixed(_utf8(value))
    if isinstance(value, bytes):
        return b"b" + _prefixed(value)
    raise IdentityError(
        f'identity field "{name}" is a {type(value).__name__}; only str, bytes, int, bool and None have one encoding '
        "on every machine: convert it"
    )


def canonical(domain: str, fields: Mapping[str, FieldValue]) -> bytes:
    """Encode named fields in exactly one way: domain, count, then (name, type, value) sorted by name.

    Every part carries its length, so that no two different inputs have one encoding.

    Raises:
        IdentityError: for a value of any other type.
    """
    parts = [_prefixed(_utf8(domain)), len(fields).to_bytes(8, "big")]
    for name in sorted(fields, key=_utf8):
        parts += _prefixed(_utf8(name)), _encode_value(name, fields[name])
    return b"".join(parts)


def digest(domain: str, fields: Mapping[str, FieldValue]) -> bytes:
    """32-byte SHA-256 of the canonical encoding."""
    return hashlib.sha256(canonical(domain, fields)).digest()


NO_BLOCK_FIELDS = digest("paceline.kv.block_fields", {})


def block_key(parent: bytes, token_bytes: bytes, block_fields: bytes = NO_BLOCK_FIELDS) -> bytes:
    """32-byte key of a full block.

    Args:
        parent: 32-byte key of the block before it; the identity root for the first.
        token_bytes: The block's token ids, int64 little-endian.
        block_fields: 32-byte digest of the block-level identity.
    """
    size = len(token_bytes).to_bytes(8, "big")
    return hashlib.sha256(b"".join((_BLOCK_TAG, parent, block_fields, size, token_bytes))).digest()


def component_key(target_key: bytes, group: KVGroup) -> bytes:
    """32-byte key of a draft group's part of the block that has ``target_key``."""
    group_digest = digest("paceline.kv.group", {**dataclasses.asdict(group)})
    return hashlib.sha256(_COMPONENT_TAG + target_key + group_digest).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreIdentity:
    """The fields that no plugin can remove; fixed for the life of an engine's weights.

    Attributes:
        weights_fingerprint: Hex digest of the weights' content, never of their name.
        tokenizer_fingerprint: Hex digest of the tokenizer's content; ``""`` without one.
        rope: The rotary configuration in force, as text.
        attention: Everything else that shapes K and V of a layer (windows, heads, biases), as text.
        kv_dtype: Name of the KV dtype.
        kv_layout: Name of the layout of a block.
        block_size: Tokens per block.
        numerics: ``"fast"`` or ``"exact"``.
        numerics_facts: What fixes the bits of that mode (library versions, row limits), as text.
        adapter_fingerprint: Hex digest of the adapter's content; ``""`` for the base model.
    """

    weights_fingerprint: str
    tokenizer_fingerprint: str
    rope: str
    attention: str
    kv_dtype: str
    kv_layout: str
    block_size: int
    numerics: str
    numerics_facts: str
    adapter_fingerprint: str = ""

    def fields(self) -> dict[str, FieldValue]:
        """The fields by name, the format version among them."""
        return {"core.format_version": FORMAT_VERSION, **{f"core.{k}": v for k, v in dataclasses.asdict(self).items()}}


def _own(contributor: str, level: str, fields: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
    owned: dict[str, FieldValue] = {f"{contributor}.{level}.{name}": value for name, value in fields.items()}
    for name, value in owned.items():
        _encode_value(name, value)
    return owned


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name in _RESERVED_NAMES or "." in name or not name:
            raise IdentityError(
                f'cache identity contributor "{name}" has a name that fields of the core may have; '
                f"choose one without a dot that is none of: {', '.join(_RESERVED_NAMES)}"
            )
        if names.count(name) > 1:
            raise IdentityError(f'cache identity contributor "{name}" is named {names.count(name)} times; name it once')


class IdentityBuilder:
    """Puts the core's and the contributors' fields together.

    Args:
        core: The core's fields.
        contributors: ``(name, contributor)``; their order does not matter.
        boundaries: ``name -> (hook -> context)`` in which a contributor's code runs.

    Raises:
        IdentityError: if a name is taken, or a field cannot be encoded.
    """

    def __init__(
        self,
        core: CoreIdentity,
        contributors: Sequence[tuple[str, IdentityContributor]] = (),
        boundaries: Mapping[str, Boundary] | None = None,
    ) -> None:
        _check_names([name for name, _ in contributors])
        self.core = core
        self._boundaries = boundaries or {}
        self._contributors = sorted(contributors, key=lambda pair: pair[0])
        # Asked whenever it is overridden: asking too often costs time, asking too seldom shares wrong KV.
        self._block_level = [
            (name, contributor)
            for name, contributor in self._contributors
            if type(contributor).block_fields is not IdentityContributor.block_fields
        ]
        self._model_fields = core.fields()
        for name, contributor in self._contributors:
            with self._boundary(name)("model_fields"):
                self._model_fields |= _own(name, "model", contributor.model_fields())
        self._model_digest = digest("paceline.kv.model", self._model_fields)

    @property
    def has_block_fields(self) -> bool:
        """Whether equal tokens after an equal prefix may still have different KV."""
        return bool(self._block_level)

    def _boundary(self, name: str) -> Boundary:
        return self._boundaries.get(name, no_boundary)

    def _request_fields(self, request: RequestFacts) -> dict[str, FieldValue]:
        fields: dict[str, FieldValue] = {
            "request.cache_salt": request.cache_salt,
            "request.trust_domain": request.trust_domain,
        }
        for name, contributor in self._contributors:
            with self._boundary(name)("request_fields"):
                fields |= _own(name, "request", contributor.request_fields(request))
        return fields

    def root(self, request: RequestFacts) -> bytes:
        """32-byte digest of the model's and the request's identity: the parent key of its first block."""
        fields = self._request_fields(request)
        return digest("paceline.kv.root", {**fields, "model": self._model_digest})

    def explain(self, request: RequestFacts) -> dict[str, FieldValue]:
        """Every field of the model's and the request's identity, by name."""
        return {**self._model_fields, **self._request_fields(request)}

    def block_fields(self, request: RequestFacts, tokens: np.ndarray, start: int) -> dict[str, FieldValue]:
        """Fields of the full block whose int64 ``tokens`` begin at position ``start``."""
        fields: dict[str, FieldValue] = {}
        for name, contributor in self._block_level:
            with self._boundary(name)("block_fields"):
                fields |= _own(name, "block", contributor.block_fields(request, tokens.tolist(), start))
        return fields

    def key(self, parent: bytes, request: RequestFacts, tokens: np.ndarray, start: int) -> bytes:
        """32-byte key of the full block whose int64 ``tokens`` begin at position ``start``."""
        data = tokens.astype("<i8", copy=False).tobytes()
        if not self._block_level:
            return block_key(parent, data)
        fields = self.block_fields(request, tokens, start)
        return block_key(parent, data, digest("paceline.kv.block_fields", fields))
