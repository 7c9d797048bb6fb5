"""What a constraint is held to: masks are a pure function of the request and the drafted tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from paceline.api import ConstraintCapabilities, PacelineError, ReleaseReason
from paceline.engine.constraints import EngineConstraintContext
from paceline.testing import helpers
from paceline.testing.contract import Contract
from paceline.testing.engines import Ask, random_tokens, run
from paceline.testing.masks import Masks, constrained_request
from paceline.testing.memory import check_memory
from paceline.testing.models import END_TOKEN_ID, VOCAB_SIZE

__all__ = ["ConstraintContract"]

STRUCTURED: Mapping[str, Any] = {
    "choice": ["maybe", "may", "no"],
    "json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "json_object": True,
    "regex": "(ab|c){2,5}d?",
}
REFUSED: Mapping[str, Any] = {"json": {"type": "no_such_type"}, "regex": "(unclosed", "grammar": "((("}


class ConstraintContract(Contract):
    """Tests of a constraint.

    Attributes:
        asks: What requests ask of it; needed unless it takes structured outputs, for which the tests have their own.
    """

    kind = "constraint"
    asks: ClassVar[Sequence[Any]] = ()
    settings = (*Contract.settings, "asks")

    def choice(self) -> dict[str, Any]:
        """The configuration's fields."""
        return {"constraints": [{"name": self.plugin, "options": dict(self.options)}]}

    def kinds(self) -> frozenset[str]:
        """The kinds of structured outputs that it takes."""
        with self.plain() as llm:
            described: ConstraintCapabilities = self.load().describe(llm.built.facts)
        return described.structured_outputs

    def asked(self) -> list[Any]:
        """What the tests ask."""
        structured = [{kind: STRUCTURED[kind]} for kind in sorted(self.kinds() & STRUCTURED.keys())]
        if not structured and not self.asks:
            pytest.skip('give "asks": values that requests may ask of the constraint')
        return [*structured, *self.asks]

    def masks(self) -> Masks:
        """A new constraint, ready to be asked."""
        with self.plain() as llm:
            context = EngineConstraintContext(llm.built.facts, llm.get_tokenizer())
        return Masks(self.load().build(context))

    def test_drafted_tokens_count_as_emitted_ones(self) -> None:
        """A row's mask is the same wherever the output ends and the drafted tokens begin, for a new request too."""
        masks = self.masks()
        for asked in self.asked():
            path = masks.path(asked, 1)
            for length in range(len(path) + 1):
                emitted = masks.row(asked, path[:length])
                for num_emitted in range(length):
                    drafted = masks.row(asked, path[:num_emitted], path[num_emitted:length])
                    _check_same(emitted, drafted, f"of {asked}, tokens {path[:length]}, {num_emitted} of them emitted")

    def test_some_token_is_allowed(self) -> None:
        """At the start, and after every token that was allowed, at least one token is."""
        masks = self.masks()
        for asked in self.asked():
            for seed in range(4):
                path = masks.path(asked, seed)
                assert path, f"of {asked}, nothing but the end is allowed at the start"
                assert masks.row(asked, path).any(), f"of {asked}, {path} were allowed, and nothing may follow"

    def test_what_is_not_allowed_leads_nowhere(self) -> None:
        """After a drafted token that was not allowed, and after the end, nothing is."""
        masks = self.masks()
        for asked in self.asked():
            path = masks.path(asked, 2)
            for length in range(len(path) + 1):
                allowed = masks.row(asked, path[:length])
                wrong = [*np.flatnonzero(~allowed)[:2].tolist(), *np.flatnonzero(~allowed)[-2:].tolist()]
                for token in {*wrong, END_TOKEN_ID} if self.kinds() else set(wrong):
                    rest = masks.row(asked, path[:length], [token])
                    assert not rest.any(), (
                        f"of {asked}, {rest.sum()} tokens may follow {path[:length]} and then {token}"
                    )

    def test_rejected_drafts_leave_no_trace(self) -> None:
        """A request whose drafts were looked at goes on as one that never drafted."""
        masks = self.masks()
        for asked in self.asked():
            own = masks.new_id()
            path, other = masks.path(asked, 3), masks.path(asked, 4)
            for length in range(len(path) + 1):
                for drafted in (other[:2], path[length : length + 3], [VOCAB_SIZE - 1] * 2):
                    masks.row(asked, path[:length], drafted, own)
                plain, after = masks.row(asked, path[:length]), masks.row(asked, path[:length], (), own)
                _check_same(plain, after, f"of {asked}, tokens {path[:length]}, after drafts that were rejected")

    def test_mates_change_nothing(self) -> None:
        """Rows of one batch have the masks that each has alone, in whatever order."""
        masks = self.masks()
        rows = []
        for number, asked in enumerate(self.asked() * 2):
            path = masks.path(asked, number)
            rows += [(asked, path[:2], path[2:4]), (asked, path[:1], path[1:2]), (asked, path, [])]
        alone = [masks.row(*row) for row in rows]
        for order in (range(len(rows)), range(len(rows) - 1, -1, -1)):
            together = masks.rows([(masks.new_id(), *rows[index]) for index in order])
            for index, mask in zip(order, together, strict=True):
                _check_same(alone[index], mask, f"of {rows[index][0]}, alone and in a batch of {len(rows)} rows")

    def test_an_id_comes_again(self) -> None:
        """After a release, however it came about, an id may stand for another request."""
        masks = self.masks()
        for asked in self.asked():
            path, fresh = masks.path(asked, 5), masks.row(asked, [])
            for reason in ReleaseReason:
                for length in range(len(path) + 1):
                    masks.row(asked, path[:length], (), "again")
                masks.constraint.release(("again", "never seen"), reason)
                masks.constraint.release(("again",), reason)
                _check_same(
                    fresh, masks.row(asked, [], (), "again"), f"of {asked}, new and under an id that was {reason}"
                )
                masks.constraint.release(("again",), reason)

    def test_tokens_are_allowed_and_drafts_change_none(self) -> None:
        """In an engine every token is allowed, and drafts change none, at temperatures 0, 0.7 and 1.3."""
        masks = self.masks()
        asks = [self._ask(asked, temperature) for asked in self.asked() for temperature in (0.0, 0.7, 1.3)]
        with self.engine() as llm:
            expected = run(llm, asks)
        truth = [[*ask.tokens, *tokens] for ask, tokens in zip(asks, expected, strict=True)]
        with self.engine(proposer=helpers.NAME, proposer_options={"truth": truth}, num_gpu_blocks_override=40) as llm:
            emitted = run(llm, asks)
        for ask, own, wanted in zip(asks, emitted, expected, strict=True):
            asked = ask.structured_outputs or next(iter(ask.constraints.values()))
            assert own == wanted, f"of {asked}, {own} are emitted with drafts, {wanted} without"
            for length, token in enumerate(wanted):
                assert masks.row(asked, wanted[:length])[token], (
                    f"of {asked}, {token} was emitted after {wanted[:length]}"
                )

    def _ask(self, asked: Any, temperature: float) -> Ask:
        tokens = random_tokens(1, 6)
        if isinstance(asked, Mapping) and len(asked) == 1 and self.kinds() & asked.keys():
            return Ask(tokens=tokens, temperature=temperature, structured_outputs=asked, ignore_eos=False)
        return Ask(tokens=tokens, temperature=temperature, constraints={self.load().name: asked})

    @pytest.mark.parametrize("kind", sorted(REFUSED))
    def test_nonsense_is_refused(self, kind: str) -> None:
        """What cannot be enforced is refused before anything is queued, with an error of Paceline's."""
        if kind not in self.kinds():
            pytest.skip(f"the constraint takes no {kind}")
        masks = self.masks()
        with pytest.raises(PacelineError):
            masks.constraint.check(constrained_request("refused", {kind: REFUSED[kind]}, []))

    def test_memory_does_not_grow(self) -> None:
        """500 requests that end leave nothing behind."""
        masks = self.masks()
        paths = [(asked, masks.path(asked, 6)) for asked in self.asked()]

        def work() -> None:
            for asked, path in paths:
                own = masks.new_id()
                for length in range(len(path) + 1):
                    masks.row(asked, path[:length], path[length:], own)
                masks.constraint.release((own,), ReleaseReason.FINISHED)

        check_memory(masks.constraint, work, rounds=-(-250 // len(paths)), requests_per_round=len(paths))


def _check_same(first: np.ndarray, second: np.ndarray, which: str) -> None:
    differing = np.flatnonzero(first != second)
    assert not len(differing), f"two masks differ at ids {differing[:5].tolist()}: {which}"
