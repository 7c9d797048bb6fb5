"""Commands: subcommands of the ``paceline`` command line that a plugin brings, and what the core lends them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.api.facts import TargetFacts
from paceline.api.specs import Spec

__all__ = [
    "Command",
    "CommandCapabilities",
    "CommandContext",
    "CommandSpec",
    "Generation",
    "Session",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One prompt and what the target said to it.

    Attributes:
        prompt_token_ids: The prompt.
        token_ids: Emitted ids, the end token included.
        finish_reason: ``"stop"``, ``"length"`` or ``"error"``.
        num_drafts: Verify steps with at least one draft token.
        num_draft_tokens: Draft tokens verified.
        num_accepted_tokens: Of them accepted.
        draft_time_s: Time in the proposer, summed over the steps that the request was in.
        verify_time_s: Time in the target pass and the verifier, likewise.
    """

    prompt_token_ids: Sequence[int]
    token_ids: Sequence[int]
    finish_reason: str
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    draft_time_s: float
    verify_time_s: float


class Session(Protocol):
    """An engine that a command opened. A context manager; leaving it closes the engine."""

    @property
    def facts(self) -> TargetFacts:
        """Facts about the target."""

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer as transformers has it, to be read only; ``None`` when there is none."""

    def chat_prompt(self, text: str) -> list[int]:
        """Tokens of one user message through the checkpoint's chat template.

        Raises:
            PacelineError: if there is no template.
        """

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
        """Generate for all prompts, batched; results come in the order of the prompts.

        Args:
            prompts: Token ids of each.
            max_tokens: Most tokens to emit for each.
            temperature: 0 is greedy.
            seed: Seed of prompt ``i`` is derived from it and ``i``; ``None`` draws random ones.
            ignore_eos: Go on past the end token.
            on_finished: Called with the index of a prompt and its result as soon as it has ended.

        Raises:
            PacelineError: if a prompt can never be served; then nothing was generated.
        """

    def embed(self, ids: Any) -> Any:
        """Target embeddings of int64 ``[n]``: ``[n, hidden]``, with the target's own scaling."""

    def logits(self, hidden: Any) -> Any:
        """Target logits float32 ``[n, vocab]`` of final hidden states ``[n, hidden]``."""

    def open_checkpoint(self) -> Mapping[str, Any]:
        """The target's tensors by name; see ``ProposerContext.open_checkpoint``."""

    def close(self) -> None:
        """Close the engine and its plugins."""

    def __enter__(self) -> Session:
        """Itself."""

    def __exit__(self, *exception: object) -> None:
        """Close it."""


class CommandContext(Protocol):
    """What the host hands a command when it is built."""

    def open(self, model: str, **options: Any) -> Session:
        """Build an engine; ``options`` are fields of the engine's configuration.

        Raises:
            PacelineError: naming what is wrong with the options, the model or a plugin.
        """


@dataclass(frozen=True, kw_only=True)
class CommandCapabilities:
    """What a command gives; nothing is negotiated."""


class Command(ABC):
    """One run of a subcommand. Faults of the user's are ``PacelineError``; Ctrl-C may come at any time."""

    @abstractmethod
    def run(self) -> None:
        """Do the work; called once."""


@dataclass(frozen=True, kw_only=True)
class CommandSpec(Spec[CommandCapabilities, CommandContext, Command]):
    """A subcommand ``paceline NAME PLUGIN``: the spec's name, then the plugin's.

    The fields of ``options`` are its flags, their descriptions its help; a required field is a required flag, a list a
    flag that may be repeated. A command has no target, so ``describe`` is not called.
    """

    describe: Callable[[Any, TargetFacts], CommandCapabilities] = lambda options, target: CommandCapabilities()
