"""Outputs piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.engine.engine import Engine
from paceline.engine.outputs import RequestOutput, StreamDelta

__all__ = ["deltas"]


def deltas(engine: Engine, request_ids: Sequence[str]) -> Iterator[StreamDelta]:
    """Step the engine until these requests have ended, and give what each step brought them.

    Args:
        engine: With the requests queued; those of others advance too.
        request_ids: In the order of their prompts.
    """
    owners = {
        sample_id: (prompt_index, index)
        for prompt_index, request_id in enumerate(request_ids)
        for index, sample_id in enumerate(engine.sample_ids(request_id))
    }
    num_left = len(request_ids)
    while num_left:
        result = engine.step()
        ended = {output.request_id: output for output in result.finished if output.request_id in request_ids}
        num_left -= len(ended)
        for sample_id, (prompt_index, index) in owners.items():
            if sample_id not in result.new_tokens and sample_id not in result.new_text:
                continue
            yield StreamDelta(
                prompt_index=prompt_index,
                index=index,
                text=result.new_text.get(sample_id, ""),
                token_ids=[int(token) for token in result.new_tokens.get(sample_id, ())],
            )
        for request_id, output in ended.items():
            yield _end(request_ids.index(request_id), output)


def _end(prompt_index: int, output: RequestOutput) -> StreamDelta:
    return StreamDelta(
        prompt_index=prompt_index, index=output.outputs[-1].index, text="", token_ids=[], finished=output
    )
