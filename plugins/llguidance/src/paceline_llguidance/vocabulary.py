"""The target's vocabulary as llguidance needs it."""

from __future__ import annotations

from typing import Any

import numpy as np
from llguidance import LLTokenizer

from paceline.api import PluginError

__all__ = ["Vocabulary"]

END = "<|end of grammar|>"


class Vocabulary:
    """The target's tokens, and one more behind them with which llguidance says that a grammar may end.

    That token is none of the target's, so it is neither text nor mistaken for an id that ends a request.

    Attributes:
        tokenizer: What llguidance builds matchers with.
        num_ids: Ids that may be chosen; every other is cut off.
        num_bytes: Bytes of a mask over ``num_ids``.
    """

    def __init__(self, tokenizer: Any, num_ids: int) -> None:
        """Read the tokenizer: once per engine, 0.2 s for 49k tokens.

        Args:
            tokenizer: The target's transformers tokenizer.
            num_ids: Ids that may be chosen.

        Raises:
            PluginError: there is no tokenizer, or none that llguidance can read.
        """
        backend = _with_end(tokenizer)
        self._end_id: int = backend.token_to_id(END)
        try:
            self.tokenizer = LLTokenizer(backend.to_str(), eos_token=self._end_id)
        except ValueError as error:
            raise PluginError(
                f"llguidance cannot read the {type(tokenizer).__name__} of the target: {error}; structured outputs "
                "need a tokenizer whose tokens are bytes (byte-level or byte-fallback BPE)"
            ) from error
        self.num_ids = num_ids
        self.num_bytes = -(-num_ids // 8)
        self._ids = self.mask_of(range(num_ids))

    def mask_of(self, ids: range | tuple[int, ...]) -> np.ndarray:
        """Return uint8 ``[num_bytes]`` with the bits of these ids set, of those that may be chosen."""
        allowed = np.zeros(self.num_bytes * 8, dtype=np.bool_)
        allowed[[token for token in ids if token < self.num_ids]] = True
        return np.packbits(allowed, bitorder="little")

    def split(self, bits: bytes) -> tuple[np.ndarray, bool]:
        """Split llguidance's mask into uint8 ``[num_bytes]`` over the target's ids, and whether the grammar may end."""
        mask = np.frombuffer(bits, dtype=np.uint8)
        return mask[: self.num_bytes] & self._ids, bool(mask[self._end_id >> 3] >> (self._end_id & 7) & 1)


def _with_end(tokenizer: Any) -> Any:
    if tokenizer is None:
        raise PluginError("structured outputs need the target's tokenizer, and none was loaded; load the model with it")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise PluginError(
            f"structured outputs need a fast tokenizer, and {type(tokenizer).__name__} is a slow one; "
            "convert it, so that a tokenizer.json lies beside the model"
        )
    extended = type(backend).from_str(backend.to_str())
    extended.no_padding()
    extended.no_truncation()
    extended.add_special_tokens([END])
    return extended
