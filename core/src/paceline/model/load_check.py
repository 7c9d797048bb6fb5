"""The load check: before serving, the paged model is compared with the model's own forward and with itself.

(a) Two sequences flattened into one batch, one of them in chunks, against the model's own forward: by tolerance.
(b) A prompt alone against the same prompt in chunks, and beside a mate at the longest position with its last rows one
by one: by tolerance in fast numerics, by bits in exact numerics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from paceline.model.architecture import attention_windows
from paceline.model.bridge import own_attention
from paceline.model.errors import LoadCheckError
from paceline.model.loading import LoadedModel
from paceline.model.probe import Part, Probe
from paceline.model.runner import FINAL, ForwardOutput
from paceline.ops.select import Ops

__all__ = ["check_model"]

_SEED = 20240229
# Longer than the 64 positions that exact attention takes at a time, with a remainder.
_NUM_TOKENS = 71
_NUM_MATE_TOKENS = 21
_NUM_SINGLE_ROWS = 4
# A window no longer than this is crossed by the check; a longer one would make the check slow.
_LONGEST_CROSSED_WINDOW = 512
_WINDOW_MARGIN = 19
# Largest difference allowed, relative to the largest logit.
_TOLERANCES = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}


def check_model(loaded: LoadedModel, ops: Ops, max_model_len: int) -> None:
    """Check that a loaded model gives its own logits on the paged path, whatever its rows share a batch with.

    Args:
        loaded: The model.
        ops: The attention body that will serve it.
        max_model_len: Longest sequence in tokens, at least 2; the mate of check (b) stands at its end.

    Raises:
        LoadCheckError: naming the comparison that failed and by how much.
        UnsupportedModelError: if the model does not reach the paged attention as it should.
    """
    generator = np.random.default_rng(_SEED)
    prompt = generator.integers(0, loaded.num_token_ids, _prompt_length(loaded, max_model_len))
    mate = generator.integers(0, loaded.num_token_ids, min(_NUM_MATE_TOKENS, len(prompt)))
    check = _Check(loaded, ops, prompt, mate, max_model_len)
    chunked = check.flattened()
    check.batch_mates(chunked)


@dataclass(slots=True)
class _Check:
    loaded: LoadedModel
    ops: Ops
    prompt: np.ndarray
    mate: np.ndarray
    max_model_len: int

    def flattened(self) -> torch.Tensor:
        """Check (a); returns the logits of the prompt."""
        probe = self._probe()
        border = len(self.prompt) // 2
        first = probe.run([Part(0, 0, self.prompt[:border]), Part(1, 0, self.mate)])
        self._ends(probe, first)
        second = probe.run([Part(0, border, self.prompt[border:])])
        chunked = torch.cat([first.logits[:border], second.logits])
        what = "the paged forward and the model's own"
        self._compare(what, chunked, self._own_logits(self.prompt))
        self._compare(what, first.logits[border:], self._own_logits(self.mate))
        return chunked

    def batch_mates(self, chunked: torch.Tensor) -> None:
        """Check (b), given the logits of the prompt in two chunks."""
        by_bits = self.loaded.numerics == "exact"
        alone = self._probe().run([Part(0, 0, self.prompt)]).logits
        self._compare("a prompt in chunks and the same prompt whole", chunked, alone, by_bits)
        what = f"a prompt beside a mate at position {self.max_model_len - 1} and the same prompt alone"
        self._compare(what, self._beside_mate(), alone, by_bits)

    def _ends(self, probe: Probe, first: ForwardOutput) -> None:
        """Embedding and LM head alone must be the two ends of the forward, since proposers use them so.

        What a position adds is no part of an embedding: two rows at position 0 are compared by their difference.
        """
        mate_row = len(self.prompt) // 2
        ids = torch.from_numpy(np.array([self.prompt[0], self.mate[0]])).to(self.loaded.device)
        embedded = probe.runner.embed(ids).float()
        entering = first.features[0][[0, mate_row]].float()
        what = "the embeddings and the hidden states entering layer 0"
        self._compare(what, embedded[0] - embedded[1], entering[0] - entering[1])
        projected = probe.runner.logits(first.features[FINAL][-1:])
        self._compare("the final hidden states, projected, and the logits", projected, first.logits[-1:])

    def _beside_mate(self) -> torch.Tensor:
        """The prompt in two chunks, each behind rows of a mate at the longest position, then in single rows."""
        probe = self._probe()
        border, mate_border = len(self.prompt) // 2, len(self.mate) // 3
        first_position = self.max_model_len - len(self.mate)
        first_single = max(len(self.prompt) - _NUM_SINGLE_ROWS, border)
        mates = [
            Part(1, 0, self.mate[:mate_border], first_position),
            Part(1, mate_border, self.mate[mate_border:], first_position + mate_border),
        ]
        prompts = [Part(0, 0, self.prompt[:border]), Part(0, border, self.prompt[border:first_single])]
        passes = zip(mates, prompts, strict=True)
        logits = [probe.run([mate, prompt]).logits[len(mate.tokens) :] for mate, prompt in passes]
        singles = range(first_single, len(self.prompt))
        return torch.cat([*logits, *(probe.run([Part(0, row, self.prompt[row : row + 1])]).logits for row in singles)])

    def _probe(self) -> Probe:
        return Probe(self.loaded, self.ops, len(self.prompt))

    @torch.inference_mode()
    def _own_logits(self, ids: np.ndarray) -> torch.Tensor:
        model = self.loaded.model
        with own_attention(model):
            return model(input_ids=torch.from_numpy(ids).to(model.device)[None], use_cache=False).logits[0].float()

    def _compare(self, what: str, got: torch.Tensor, want: torch.Tensor, by_bits: bool = False) -> None:
        """Raise unless two tensors agree by bits, or within the tolerance of the dtype."""
        difference = float((got.float() - want.float()).abs().max())
        bound = 0.0 if by_bits else _TOLERANCES[self.loaded.dtype] * float(want.abs().max())
        # A difference of NaN fails as well.
        if difference <= bound:
            return
        remedy = 'choose another model or numerics="fast"' if by_bits else "choose another model"
        raise LoadCheckError(
            f'model "{self.loaded.name}" ({type(self.loaded.model).__name__}) failed the load check in '
            f'"{self.loaded.numerics}" numerics: {what} differ by {difference:.3g}, allowed is {bound:.3g}; {remedy}'
        )


def _prompt_length(loaded: LoadedModel, max_model_len: int) -> int:
    windows = [window for window in attention_windows(loaded.config) if window and window <= _LONGEST_CROSSED_WINDOW]
    return min(max([_NUM_TOKENS, *(window + _WINDOW_MARGIN for window in windows)]), max_model_len)
