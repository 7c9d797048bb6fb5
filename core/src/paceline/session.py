"""What the core lends a plugin's command: an engine, as ``paceline.api.Session``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from paceline.api import Generation, TargetFacts
from paceline.engine.chat import chat_token_ids
from paceline.engine.llm import LLM
from paceline.engine.outputs import RequestOutput
from paceline.model.checkpoint_tensors import CheckpointTensors
from paceline.sampling.noise import derive_seed
from paceline.sampling.params import SamplingParams

__all__ = ["EngineSession", "SessionContext"]


class SessionContext:
    """``paceline.api.CommandContext``."""

    def open(self, model: str, **options: Any) -> EngineSession:
        """Build an engine."""
        return EngineSession(LLM(model, **options))


class EngineSession:
    """``paceline.api.Session`` over an ``LLM``."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    @property
    def facts(self) -> TargetFacts:
        """Facts about the target."""
        return self._llm.built.facts

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer."""
        return self._llm.get_tokenizer()

    def chat_prompt(self, text: str) -> list[int]:
        """Tokens of one user message through the chat template."""
        return chat_token_ids(self.tokenizer, [{"role": "user", "content": text}])

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int | None = None,
        ignore_eos: bool = False,
        on_finished: Callable[[int, Generation], None] | None = None,
    ) -> list[Generation]:
        """Generate for all prompts, batched."""
        mappings = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        params = [
            SamplingParams(
                temperature=temperature,
                max_tokens=max_tokens,
                ignore_eos=ignore_eos,
                seed=None if seed is None else derive_seed(seed, index),
            )
            for index in range(len(prompts))
        ]
        results: dict[int, Generation] = {}
        for delta in self._llm.generate(mappings, params, stream=True) if mappings else ():
            if delta.finished is not None:
                results[delta.prompt_index] = _generation(delta.finished)
                if on_finished is not None:
                    on_finished(delta.prompt_index, results[delta.prompt_index])
        return [results[index] for index in range(len(prompts))]

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Target embeddings."""
        return self._llm.built.runner.embed(ids)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Target logits."""
        return self._llm.built.runner.logits(hidden)

    def open_checkpoint(self) -> Mapping[str, torch.Tensor]:
        """The target's tensors by name."""
        return CheckpointTensors(self._llm.built.loaded.checkpoint)

    def close(self) -> None:
        """Close the engine."""
        self._llm.close()

    def __enter__(self) -> EngineSession:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _generation(output: RequestOutput) -> Generation:
    completion, metrics = output.outputs[0], output.metrics
    return Generation(
        prompt_token_ids=output.prompt_token_ids,
        token_ids=completion.token_ids,
        finish_reason=completion.finish_reason or "",
        num_drafts=metrics.num_drafts,
        num_draft_tokens=metrics.num_draft_tokens,
        num_accepted_tokens=metrics.num_accepted_tokens,
        draft_time_s=metrics.draft_time_s,
        verify_time_s=metrics.verify_time_s,
    )
