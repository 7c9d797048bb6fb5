"""The last stage: what the head is worth in the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.api import Generation, Session
from paceline_eagle.training.progress import stage_progress

__all__ = ["Measurement", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Figures of greedy answers to held-out prompts.

    Attributes:
        num_prompts: How many.
        num_tokens: Tokens emitted.
        num_steps: Verify steps with at least one draft.
        num_draft_tokens: Tokens drafted in them.
        num_accepted_tokens: Of these accepted.
    """

    num_prompts: int
    num_tokens: int
    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify step with drafts, the target's own among them."""
        return 1 + self.num_accepted_tokens / max(self.num_steps, 1)


def measure(session: Session, prompts: Sequence[Sequence[int]], max_tokens: int) -> Measurement:
    """Answer the prompts greedily in a session whose proposer is the head."""
    with stage_progress("measuring", len(prompts)) as progress:

        def count(index: int, generation: Generation) -> None:
            progress.advance("")

        generations = session.generate(prompts, max_tokens=max_tokens, on_finished=count)
    return Measurement(
        num_prompts=len(generations),
        num_tokens=sum(len(each.token_ids) for each in generations),
        num_steps=sum(each.num_drafts for each in generations),
        num_draft_tokens=sum(each.num_draft_tokens for each in generations),
        num_accepted_tokens=sum(each.num_accepted_tokens for each in generations),
    )
