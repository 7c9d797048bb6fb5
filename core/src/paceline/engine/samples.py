"""Several samples of one prompt: each is a request of its own, the caller sees one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from paceline.engine.metrics import merged
from paceline.engine.outputs import RequestOutput
from paceline.engine.request import Request

__all__ = ["Samples"]


@dataclass(slots=True)
class _Group:
    request_id: str
    members: list[str]
    held: list[Request]
    ended: list[RequestOutput] = field(default_factory=list)


class Samples:
    """Which requests belong together. The first of a group computes the prompt, and the others wait for its KV.

    Attributes:
        groups: The live groups by id; a request that stands alone is not in here.
    """

    def __init__(self) -> None:
        self.groups: dict[str, _Group] = {}
        self._group_of: dict[str, _Group] = {}

    def open(self, request_id: str, requests: Sequence[Request]) -> None:
        """Take over a group whose first request was queued."""
        members = [request.request_id for request in requests]
        self.groups[request_id] = group = _Group(request_id, members, list(requests[1:]))
        self._group_of |= dict.fromkeys(members, group)

    def members(self, request_id: str) -> list[str]:
        """Ids of a group's requests, in the order of samples; any other id stands for itself."""
        group = self.groups.get(request_id)
        return [request_id] if group is None else group.members

    def freed_by(self, request: Request) -> list[Request]:
        """Requests that need not wait any longer, now that this one has emitted or ended."""
        group = self._group_of.get(request.request_id)
        if group is None or not group.held:
            return []
        freed, group.held = group.held, []
        return freed

    def end(self, output: RequestOutput) -> RequestOutput | None:
        """The output to hand out now that one has ended: its own, or its group's with the last of them."""
        group = self._group_of.pop(output.request_id, None)
        if group is None:
            return output
        group.ended.append(output)
        if len(group.ended) < len(group.members):
            return None
        del self.groups[group.request_id]
        return _merged(group.request_id, group.ended)

    def output(self, request_id: str, live: Sequence[RequestOutput]) -> RequestOutput:
        """A group as it stands, from its ended and its live members."""
        return _merged(request_id, [*self.groups[request_id].ended, *live])


def _merged(request_id: str, parts: Sequence[RequestOutput]) -> RequestOutput:
    parts = sorted(parts, key=lambda part: part.outputs[0].index)
    return replace(
        parts[0],
        request_id=request_id,
        outputs=[completion for part in parts for completion in part.outputs],
        finished=all(part.finished for part in parts),
        metrics=merged([part.metrics for part in parts]),
        error=next((part.error for part in parts if part.error is not None), None),
    )
