"""The proposer: what it drafts, how long, for whom; its options and its declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pluggy
import pytest
from pydantic import ValidationError

from paceline.api import ProposeBatch, ReleaseReason, TargetFacts, hooks
from paceline_ngram import plugin
from paceline_ngram.plugin import NgramOptions, NgramProposer

MakeBatch = Callable[..., ProposeBatch]


def proposer(**options: Any) -> NgramProposer:
    return NgramProposer(NgramOptions.model_validate(options))


def drafts_of(subject: NgramProposer, batch: ProposeBatch) -> list[list[int]]:
    drafts = subject.propose(batch)
    assert drafts.parents is None
    assert drafts.tokens.shape[0] == len(batch.requests)
    assert (drafts.lengths <= batch.budgets).all()
    rows = [row[:length].tolist() for row, length in zip(drafts.tokens, drafts.lengths, strict=True)]
    assert all((row[length:] == -1).all() for row, length in zip(drafts.tokens, drafts.lengths, strict=True))
    return rows


def test_longest_match_wins_over_a_more_recent_shorter_one(make_batch: MakeBatch) -> None:
    text = [1, 2, 3, 40, 41, 9, 3, 50, 51, 1, 2, 3]
    assert drafts_of(proposer(), make_batch({"a": text}, [2])) == [[40, 41]]


def test_of_equal_matches_the_most_recent_wins(make_batch: MakeBatch) -> None:
    text = [1, 2, 40, 8, 1, 2, 50, 9, 1, 2]
    assert drafts_of(proposer(), make_batch({"a": text}, [1])) == [[50]]


def test_output_is_looked_up_as_well_as_prompt(make_batch: MakeBatch) -> None:
    subject = proposer()
    assert drafts_of(subject, make_batch({"a": [1, 2, 3]}, [4])) == [[]]
    assert drafts_of(subject, make_batch({"a": [1, 2, 3, 4, 5, 6, 4, 5]}, [1])) == [[6]]


def test_past_the_end_it_goes_on_with_the_period(make_batch: MakeBatch) -> None:
    batch = make_batch({"one": [7] * 5, "three": [1, 2, 3, 1, 2, 3, 1]}, [6, 6])
    assert drafts_of(proposer(tokens_per_match=9), batch) == [[7] * 6, [2, 3, 1, 2, 3, 1]]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 11])
def test_draft_length_follows_the_match_beyond_max_match(make_batch: MakeBatch, length: int) -> None:
    repeated = list(range(100, 100 + length))
    text = [1, *repeated, *range(200, 230), 2, *repeated]
    (row,) = drafts_of(proposer(max_match=3), make_batch({"a": text}, [20]))
    assert row == list(range(200, 200 + 1 + length))


@pytest.mark.parametrize(("ratio", "expected"), [(0, 1), (0.5, 3), (1, 4), (2, 7)])
def test_tokens_per_match_sets_the_slope(make_batch: MakeBatch, ratio: float, expected: int) -> None:
    text = [1, 2, 3, *range(50, 80), 1, 2, 3]
    (row,) = drafts_of(proposer(tokens_per_match=ratio), make_batch({"a": text}, [20]))
    assert len(row) == expected


def test_matches_shorter_than_min_match_draft_nothing(make_batch: MakeBatch) -> None:
    batch = make_batch({"two": [1, 2, 3, 4, 1, 2], "three": [1, 2, 3, 4, 1, 2, 3]}, [4, 1])
    assert drafts_of(proposer(min_match=3), batch) == [[], [4]]


def test_budgets_are_kept_one_by_one(make_batch: MakeBatch) -> None:
    batch = make_batch({name: [5] * 20 for name in "abc"}, [0, 3, 1])
    assert drafts_of(proposer(), batch) == [[], [5, 5, 5], [5]]


def test_an_empty_batch_is_fine(make_batch: MakeBatch) -> None:
    assert drafts_of(proposer(), make_batch({}, [])) == []


def test_drafts_depend_on_the_text_alone(make_batch: MakeBatch) -> None:
    """Requests join, pause, are preempted and leave; each row is what a fresh proposer says of the same text."""
    rng = np.random.default_rng(3)
    subject, texts, num_drafted = proposer(max_match=4), {}, 0
    for step in range(300):
        texts.setdefault(f"r{rng.integers(6)}", rng.integers(3, size=rng.integers(1, 30)).tolist())
        for name, tokens in texts.items():
            tokens.extend(rng.integers(3 if name < "r3" else 9, size=rng.integers(1, 5)).tolist())
        chosen = {name: list(tokens) for name, tokens in texts.items() if rng.random() < 0.7}
        budgets = rng.integers(0, 7, size=len(chosen)).tolist()
        rows = drafts_of(subject, make_batch(chosen, budgets))
        fresh = [
            drafts_of(proposer(max_match=4), make_batch({name: tokens}, [budget]))[0]
            for (name, tokens), budget in zip(chosen.items(), budgets, strict=True)
        ]
        assert rows == fresh
        num_drafted += sum(map(len, rows))
        if step % 5 == 0:
            name = str(rng.choice(list(texts)))
            reason = ReleaseReason(rng.choice(["finished", "preempted", "aborted"]))
            subject.release((name, "unknown", name), reason)
            if reason is not ReleaseReason.PREEMPTED:
                del texts[name]
    assert num_drafted > 500


def test_release_frees_the_request_and_its_id(make_batch: MakeBatch) -> None:
    subject = proposer()
    drafts_of(subject, make_batch({"a": [1, 2, 1], "b": [3, 4, 3]}, [1, 1]))
    subject.release(("a",), ReleaseReason.FINISHED)
    assert list(subject._indexes) == ["b"]
    assert drafts_of(subject, make_batch({"a": [8, 9, 6, 7, 8]}, [1])) == [[9]]


@pytest.mark.parametrize("prefix", ["", "ngram_"])
def test_names_of_other_engines_are_accepted(prefix: str) -> None:
    options = NgramOptions.model_validate({f"{prefix}prompt_lookup_max": 4, f"{prefix}prompt_lookup_min": 2})
    assert (options.max_match, options.min_match) == (4, 2)


def test_own_names_and_defaults() -> None:
    options = NgramOptions.model_validate({"max_match": 6, "min_match": 3})
    assert (options.max_match, options.min_match) == (6, 3)
    assert NgramOptions().min_match == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_match": 0}, ["max_match", "greater than or equal to 1"]),
        ({"max_match": 65}, ["max_match", "less than or equal to 64"]),
        ({"prompt_lookup_min": 0}, ["prompt_lookup_min", "greater than or equal to 1"]),
        ({"tokens_per_match": -1}, ["tokens_per_match", "greater than or equal to 0"]),
        ({"tokens_per_match": float("inf")}, ["tokens_per_match", "finite"]),
        ({"min_match": 5, "max_match": 4}, ["min_match 5 is above max_match 4; lower it or raise max_match"]),
        ({"max_mach": 3}, ["max_mach", "not permitted"]),
        ({"max_match": 3, "prompt_lookup_max": 5}, ["prompt_lookup_max", "not permitted"]),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValidationError) as refusal:
        NgramOptions.model_validate(options)
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_declaration(target: TargetFacts) -> None:
    manager = pluggy.PluginManager("paceline")
    manager.add_hookspecs(hooks)
    manager.register(plugin)
    manager.check_pending()
    ((spec,),) = manager.hook.paceline_proposers()
    assert (spec.name, spec.requires_api) == ("ngram", ">=0.1,<0.2")
    capabilities = spec.describe(spec.options(), target)
    assert capabilities.max_tokens == target.max_model_len - 1
    assert capabilities.lookahead_slots(5) == 0
    assert not capabilities.kv_groups
