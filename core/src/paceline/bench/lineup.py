"""Loading what is compared: each model once, kept for the whole run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from paceline.bench.choices import EngineChoice
from paceline.bench.engines import PacelineEngine
from paceline.bench.transformers_engine import plain_logits, use_own_attention
from paceline.config import engine_config
from paceline.engine.chat import chat_token_ids
from paceline.engine.llm import LLM
from paceline.model.loading import LoadedModel, load_model

__all__ = ["NO_SPECULATION", "Baseline", "Contest", "PacelineEngines", "load_baseline"]

NO_SPECULATION = "paceline"


@dataclass(frozen=True, slots=True)
class Contest:
    """What is compared.

    Attributes:
        model: As for ``LLM``.
        variants: Engines of their own beside the plain one: with a proposer, or with other settings.
        engine_options: Fields of the engine's configuration that differ from the benchmark's.
        numerics: ``"fast"`` or ``"exact"``, of Paceline.
        ignore_eos: Whether outputs go on past the end token.
    """

    model: str
    variants: Sequence[EngineChoice]
    engine_options: dict[str, Any]
    numerics: str
    ignore_eos: bool


@dataclass(slots=True)
class Baseline:
    """transformers' model, which is also the judge of differences.

    Attributes:
        loaded: The model, in transformers' own attention.
        attention: Name of that attention.
    """

    loaded: LoadedModel
    attention: str

    def encode(self, text: str) -> list[int]:
        """A user's turn through the chat template."""
        return chat_token_ids(self.loaded.tokenizer, [{"role": "user", "content": text}])

    def tokenize(self, text: str) -> list[int]:
        """Token ids of an output's text, without white space around it or what a cut character leaves at its end."""
        tokenizer: Any = self.loaded.tokenizer
        ids: list[int] = tokenizer.encode(text.rstrip("\ufffd").strip(), add_special_tokens=False)
        return ids

    def retokenize(self, token_ids: Sequence[int]) -> list[int]:
        """The same of an output's tokens: what an engine that tells text only would be told by."""
        tokenizer: Any = self.loaded.tokenizer
        return self.tokenize(tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def logits(self, token_ids: Sequence[int]) -> Any:
        """Raw scores float32 ``[vocab]`` after the tokens."""
        return plain_logits(self.loaded, token_ids)


def load_baseline(contest: Contest) -> Baseline:
    """Load the checkpoint as transformers runs it, by the same loader, so that the weights are the same.

    Raises:
        PacelineError: if the options or the model are refused.
    """
    config = engine_config(contest.model, **contest.engine_options)
    loaded = load_model(
        config.model,
        dtype=config.dtype,
        device=config.device,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
        tokenizer=config.tokenizer,
        packs=False,
    )
    return Baseline(loaded, use_own_attention(loaded))


class PacelineEngines:
    """Paceline without speculation and with each proposer; closes them all at the end of the block.

    Args:
        contest: What is compared.
        longest: Most tokens of a sequence, prompt and output.
        max_batch: Most concurrent requests.
        on_load: Called with each engine's name before it is loaded.
    """

    def __init__(self, contest: Contest, longest: int, max_batch: int, on_load: Callable[[str], None]) -> None:
        self._contest = contest
        self._defaults = {
            "numerics": contest.numerics,
            "max_model_len": longest,
            "max_num_seqs": max_batch,
            "enable_prefix_caching": False,
        }
        self._on_load = on_load
        self._stack = ExitStack()

    def __enter__(self) -> list[PacelineEngine]:
        with ExitStack() as stack:
            engines = [self._load(stack, NO_SPECULATION, {"proposer": None})]
            for choice in self._contest.variants:
                engines.append(self._load(stack, f"{NO_SPECULATION} + {choice.label}", choice.fields))
            self._stack = stack.pop_all()
        return engines

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _load(self, stack: ExitStack, name: str, fields: dict[str, Any]) -> PacelineEngine:
        self._on_load(name)
        llm = LLM(self._contest.model, **(self._defaults | self._contest.engine_options | fields))
        return PacelineEngine(name, stack.enter_context(llm), ignore_eos=self._contest.ignore_eos)
