"""``paceline bench quality``: what a quantisation costs, in divergence from the weights as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from paceline.bench.progress import BenchProgress
from paceline.bench.transformers_engine import TransformersEngine, use_own_attention
from paceline.engine.chat import chat_token_ids
from paceline.model.loading import LoadedModel, load_model

__all__ = ["Quality", "divergences", "quality"]


@dataclass(frozen=True, slots=True)
class Quality:
    """Quantised against not, over the greedy answers of the latter.

    Attributes:
        num_tokens: Positions compared.
        mean_kl: Mean of KL(as they are || quantised) in nats.
        largest_kl: The largest one.
        top1_agreement: Share of positions where both find the same token best.
        same_greedy_tokens: Mean number of leading tokens that both greedy answers share.
        answer_tokens: Length of the answers.
    """

    num_tokens: int
    mean_kl: float
    largest_kl: float
    top1_agreement: float
    same_greedy_tokens: float
    answer_tokens: int

    def to_json(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return asdict(self)


def quality(
    model: str, quantization: str, texts: Sequence[str], answer_tokens: int, progress: BenchProgress
) -> Quality:
    """Compare logits position by position, and greedy answers.

    Raises:
        PacelineError: from whatever refuses.
    """
    progress.show("loading")
    whole, rounded = load_model(model, packs=False), load_model(model, quantization=quantization)
    for loaded in (whole, rounded):
        use_own_attention(loaded)
    progress.start(2 * len(texts))
    kls: list[torch.Tensor] = []
    agreements: list[torch.Tensor] = []
    shared = []
    for index, text in enumerate(texts):
        progress.turn(f"prompt {index + 1}: answers")
        prompt = chat_token_ids(whole.tokenizer, [{"role": "user", "content": text}])
        answers = [_answer(loaded, prompt, answer_tokens) for loaded in (whole, rounded)]
        shared.append(_num_shared(*answers))
        progress.turn(f"prompt {index + 1}: logits")
        logits = [_logits(loaded, prompt + answers[0], len(prompt)) for loaded in (whole, rounded)]
        kls.append(divergences(*logits))
        agreements.append(logits[0].argmax(-1) == logits[1].argmax(-1))
    kl, same = torch.cat(kls), torch.cat(agreements)
    return Quality(
        len(kl),
        float(kl.mean()),
        float(kl.max()),
        float(same.float().mean()),
        sum(shared) / len(shared),
        answer_tokens,
    )


def divergences(logits: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """KL(softmax(logits) || softmax(others)) of each row, float64 ``[rows]`` in nats, of ``[rows, vocab]`` each."""
    own, theirs = (values.double().log_softmax(-1) for values in (logits, others))
    return (own.exp() * (own - theirs)).sum(-1)


def _answer(loaded: LoadedModel, prompt: list[int], num_tokens: int) -> list[int]:
    return TransformersEngine(loaded, ignore_eos=True).generate([prompt], num_tokens).requests[0].token_ids


def _logits(loaded: LoadedModel, ids: list[int], first: int) -> torch.Tensor:
    """Of the rows that choose the tokens from ``first`` on."""
    with torch.inference_mode():
        logits = loaded.model(input_ids=torch.tensor([ids], device=loaded.device), use_cache=False).logits
    return logits[0, first - 1 : -1, : loaded.num_token_ids].float()


def _num_shared(one: Iterable[int], other: Iterable[int]) -> int:
    count = 0
    for left, right in zip(one, other, strict=True):
        if left != right:
            break
        count += 1
    return count
