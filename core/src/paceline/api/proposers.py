"""Proposers: they draft tokens, the core verifies them.

Draft state (KV that a proposer owns) follows four rules:

(a) An entry made from (token at ``s``, feature of ``s - 1``) lies in the slot of the token at ``s``, so that every
    entry depends only on tokens up to its own slot.
(b) The core keeps one contiguous valid range ``[first, computed)`` per request and KV group; attention of that
    group never reads outside it. The proposer reports how far it computed; the core takes back what was rejected.
(c) A block publishes its draft component only when ``first == 0`` and the range covers the block. A prefix hit
    returns one length per component, and the draft's may be shorter than the target's.
(d) ``recompute_tail = n``: the last ``n`` tokens of a prefix hit are run again with target KV writes suppressed,
    to give the features that the head needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from paceline.api.drafts import Choose, Drafts
from paceline.api.facts import SamplingFacts, TargetFacts
from paceline.api.specs import Spec

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Attend",
    "CommittedBatch",
    "DraftShape",
    "KVGroup",
    "KVView",
    "PagedModel",
    "Placement",
    "ProposeBatch",
    "Proposer",
    "ProposerCapabilities",
    "ProposerContext",
    "ProposerSpec",
    "ReleaseReason",
    "RequestView",
    "chain_lookahead",
    "no_lookahead",
]


class DraftShape(StrEnum):
    """Whether drafts are one path or branch."""

    CHAIN = "chain"
    TREE = "tree"


class Placement(StrEnum):
    """Where a proposer's drafts are made."""

    HOST = "host"
    DEVICE = "device"


class ReleaseReason(StrEnum):
    """Why a proposer must forget a request."""

    FINISHED = "finished"
    ABORTED = "aborted"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Extra paged layers on the engine's own blocks, one entry per token slot.

    Attributes:
        name: Unique among the groups of an engine; ``"target"`` is the core's own.
        num_layers: Number of layers.
        num_kv_heads: KV heads per layer.
        key_size: Width of a key head.
        value_size: Width of a value head.
        dtype: Name of the entries' dtype.
        fingerprint: Hex digest of what makes the entries (weights, configuration); part of the component's key.
        private: Whether positions are the proposer's own, as for a model with another tokenizer. Then its slots are no
            function of the target's tokens: a request begins without any and gets them by ``KVView.reserve``; they are
            never shared, found by a prefix hit, or cut when drafts are rejected; they go when the request is
            preempted or ends.
    """

    name: str
    num_layers: int
    num_kv_heads: int
    key_size: int
    value_size: int
    dtype: str
    fingerprint: str
    private: bool = False


def no_lookahead(budget: int) -> int:
    """KV slots that drafting ``budget`` tokens needs: none."""
    return 0


def chain_lookahead(budget: int) -> int:
    """KV slots that drafting a chain of ``budget`` tokens with own KV needs: one per token."""
    return budget


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerCapabilities:
    """What a proposer gives and needs.

    Attributes:
        max_tokens: Most nodes it ever drafts for one request.
        shape: Chain or tree.
        lookahead_slots: ``budget -> slots``: KV slots beyond the known tokens that drafting itself writes.
        emits_probabilities: Whether ``Drafts.probabilities`` is filled.
        hidden_layers: Features it wants: the residual stream entering layer ``i``, ``"final"`` = after the last norm.
        target_top_k: Top tokens of each target row that it wants; 0 = none.
        kv_groups: Extra paged layers that it needs.
        recompute_tail: See rule (d).
        placement: Host or device.
    """

    max_tokens: int
    shape: DraftShape = DraftShape.CHAIN
    lookahead_slots: Callable[[int], int] = no_lookahead
    emits_probabilities: bool = False
    hidden_layers: tuple[int | str, ...] = ()
    target_top_k: int = 0
    kv_groups: tuple[KVGroup, ...] = ()
    recompute_tail: int = 0
    placement: Placement = Placement.HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request, read-only; valid until the call that received it returns.

    Attributes:
        request_id: Key for state that the proposer keeps; dropped on ``release``.
        tokens: int64 ``[num_tokens]`` on the host, prompt and output; not writeable.
        num_prompt_tokens: How many of ``tokens`` are the prompt.
        sampling: The parameters in force.
        trust_domain: A proposer that learns across requests keeps trust domains apart.
    """

    request_id: str
    tokens: np.ndarray
    num_prompt_tokens: int
    sampling: SamplingFacts
    trust_domain: str


class KVView(Protocol):
    """The proposer's own KV group for the requests of a batch; valid until the call returns."""

    @property
    def first(self) -> np.ndarray:
        """int64 ``[requests]``: first valid position."""

    @property
    def computed(self) -> np.ndarray:
        """int64 ``[requests]``: end of the valid range, exclusive."""

    @property
    def capacity(self) -> np.ndarray:
        """int64 ``[requests]``: number of slots reserved; positions at or beyond it have no slot."""

    def reserve(self, num_slots: np.ndarray) -> None:
        """Ask for the first ``num_slots`` (int64 ``[requests]``) slots of a private group; ``capacity`` says what came.

        Earlier requests come first. Each gets all that it asks for or nothing more: nobody is preempted for it, and
        no request gets more than the longest sequence of the target may have.

        Raises:
            PluginError: if the group is not private.
        """

    def report(self, computed: np.ndarray, first: np.ndarray | None = None) -> None:
        """Declare ``[first, computed)`` valid, ``[requests]`` each; draft positions count as long as they are followed.

        Raises:
            PluginError: if a range is not contiguous with the present one or passes the reserved slots.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeBatch:
    """The decoding requests that may draft in this step. Arrays are on the host.

    Attributes:
        requests: The requests, each with a budget of at least 1.
        budgets: int64 ``[requests]``, the most nodes each may get.
        last_tokens: int64 ``[requests]``, the last committed token.
        positions: int64 ``[requests]``, its position; the first draft stands at ``positions + 1``.
        kv: The views of the proposer's own groups, by name.
        noise: ``positions [requests] -> float32 [requests, vocab]`` on the target's device: the verifier's own
            noise for the token at that position (0 for greedy rows). A draft of
            ``argmax(log q + noise)`` is coupled to the target's choice.
        choose: ``(logits [requests, vocab], positions [requests]) -> int64 [requests]``: the verifier's own rule
            applied to the proposer's logits; see ``Choose``.
    """

    requests: tuple[RequestView, ...]
    budgets: np.ndarray
    last_tokens: np.ndarray
    positions: np.ndarray
    kv: Mapping[str, KVView]
    noise: Callable[[np.ndarray], Any]
    choose: Choose


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedBatch:
    """What became true in a step. Row arrays are on the host, features on the target's device.

    Attributes:
        requests: The requests of the step that are still live, views after the commit.
        row_request: int64 ``[rows]``, index into ``requests``.
        positions: int64 ``[rows]``, position of each row's token.
        tokens: int64 ``[rows]``.
        next_tokens: int64 ``[rows]``, the token after it (known across chunk borders).
        computed: int64 ``[requests, 2]``, positions whose target KV this step made, ``[start, stop)``.
        restored: int64 ``[requests, 2]``, positions taken from the prefix cache since the last call.
        emitted: int64 ``[requests, 2]``, positions of the tokens emitted in this step.
        recomputation: bool ``[requests]``, whether the rows repeat work lost to a preemption.
        kv: The views of the proposer's own groups, by name, for ``requests``.
        features: ``layer -> [rows, hidden]`` for the layers asked for.
        top_tokens: int64 ``[rows, target_top_k]``, or ``None``.
    """

    requests: tuple[RequestView, ...]
    row_request: np.ndarray
    positions: np.ndarray
    tokens: np.ndarray
    next_tokens: np.ndarray
    computed: np.ndarray
    restored: np.ndarray
    emitted: np.ndarray
    recomputation: np.ndarray
    kv: Mapping[str, KVView]
    features: Mapping[int | str, Any] = field(default_factory=dict)
    top_tokens: Any | None = None


class PagedModel(Protocol):
    """A causal LM that keeps its KV in a group on the engine's blocks."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""

    @property
    def max_positions(self) -> int:
        """Longest context of this model in tokens."""

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer as transformers has it, to be read only; ``None`` when there is none."""

    @property
    def tokenizer_fingerprint(self) -> str:
        """Hex digest of its tokenizer's content, comparable with ``TargetFacts``; ``""`` when there is none."""

    def forward(self, view: KVView, tokens: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> Any:
        """Run ``counts[i]`` tokens of request ``i`` at positions ``starts[i], starts[i] + 1, ...``.

        Args:
            view: The group's view for the batch.
            tokens: int64 ``[sum(counts)]``, the requests' tokens one after another.
            starts: int64 ``[requests]``.
            counts: int64 ``[requests]``; 0 leaves a request out.

        Returns:
            Logits float32 ``[requests with counts > 0, vocab]`` of each one's last token, on the target's device.
            KV is written for positions at or beyond ``view.computed`` only. Nothing is reported on your behalf.
        """


class Attend(Protocol):
    """Attention over a proposer's own KV group, for the rows of one forward; each layer calls it once."""

    def __call__(self, layer: int, query: Any, key: Any, value: Any, scaling: float | None = None) -> Any:
        """Write the rows' entries into their slots, then attend.

        Args:
            layer: Layer of the group, from 0.
            query: ``[rows, heads, key_size]``, position encoding applied.
            key: ``[rows, kv_heads, key_size]``, likewise.
            value: ``[rows, kv_heads, value_size]``.
            scaling: Factor on the scores; ``None`` = ``key_size ** -0.5``.

        Returns:
            ``[rows, heads, value_size]`` in the group's dtype.
        """


class ProposerContext(Protocol):
    """What the host hands a proposer when it is built; usable for the life of the engine."""

    @property
    def target(self) -> TargetFacts:
        """Facts about the target."""

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer as transformers has it, to be read only; ``None`` when there is none."""

    def open_checkpoint(self) -> Mapping[str, Any]:
        """The target's tensors by their names in the checkpoint, each read from its file when it is asked for.

        Those that the loaded model has no place for are among them. On the CPU, in the dtype of the file.

        Raises:
            PacelineError: if the checkpoint holds no safetensors files.
        """

    def attention(
        self,
        view: KVView,
        *,
        row_request: np.ndarray,
        slots: np.ndarray,
        visible: np.ndarray | None = None,
        paths: np.ndarray | None = None,
        first: int = 0,
    ) -> Attend:
        """Attention for one forward of the proposer's own layers.

        A row may read the valid range of its request and what was written in this call of ``propose`` or ``observe``
        with the same view. New slots follow on those without a gap. What lies in the valid range already is not
        written again, since other requests may share it. Nothing is reported on your behalf.

        Args:
            view: The group's view for the batch.
            row_request: int64 ``[rows]``, index into the view's requests, ascending.
            slots: int64 ``[rows]``, slot of each row's entry, counted from the start of its sequence; no slot of a
                request twice.
            visible: int64 ``[rows]``, leading slots that the row sees; ``slots + 1`` if not given. A row that has no
                path sees its own slot last.
            paths: int64 ``[rows, depth]`` for nodes of trees: slots of the ancestors, then of the row itself, seen
                after the leading ones; padded with -1 on the right.
            first: Slots before it hold no entry and are never read; a range reported valid may cover them.

        Raises:
            PluginError: if a row would read what nobody wrote, or has no slot of its own.
        """

    def embed(self, ids: Any) -> Any:
        """Target embeddings of int64 ``[n]``: ``[n, hidden]``, with the target's own scaling."""

    def logits(self, hidden: Any) -> Any:
        """Target logits float32 ``[n, vocab]`` of final hidden states ``[n, hidden]``, with its own scaling and cap."""

    def linear(self, weight: Any, bias: Any = None) -> Any:
        """The fastest linear layer that the engine has here, for weights of the proposer's own.

        Args:
            weight: ``[out, in]``, in the target's dtype and on its device; it may be copied into another layout, and is
                not needed afterwards.
            bias: ``[out]``, or ``None``.

        Returns:
            A ``torch.nn.Module``: ``[..., in] -> [..., out]``. For inference only.
        """

    def load_model(self, path: str, kv_group: str, layers: Sequence[int] | None = None) -> PagedModel:
        """Load a causal LM whose KV lives in ``kv_group``.

        Args:
            path: As the target's own; ``"target"`` = its weights, which are shared, not copied.
            kv_group: A group that was described.
            layers: Run these of its layers only, ascending, between its embedding and its final norm.

        Raises:
            PacelineError: if it cannot be loaded, or its layers do not fit the group.
        """


class Proposer(ABC):
    """Drafts tokens. Never decides: whatever it returns, the target's own choice is emitted."""

    @abstractmethod
    def propose(self, batch: ProposeBatch) -> Drafts:
        """Return at most ``budgets[i]`` nodes for request ``i``; fewer freely. Called once per step."""

    def observe(self, committed: CommittedBatch) -> None:  # noqa: B027
        """Learn the tokens that became true, prompt chunks included. Called once per step, after the commit."""

    def release(self, request_ids: tuple[str, ...], reason: ReleaseReason) -> None:  # noqa: B027
        """Forget these requests. Unknown ids and repeats are fine."""

    def close(self) -> None:  # noqa: B027
        """Give back what the proposer holds. Called once."""


ProposerSpec = Spec[ProposerCapabilities, ProposerContext, Proposer]
