"""Draft models whose vocabulary is not the target's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import LLM, SamplingParams
from paceline.api import PacelineError

TARGET_VOCAB = 500
PARAMS = SamplingParams(temperature=0.9, seed=3, max_tokens=8)


@pytest.fixture(scope="module")
def target(tiny: Callable[..., str], worded: Callable[[str], str]) -> str:
    return worded(tiny(vocab_size=TARGET_VOCAB))


@pytest.fixture(scope="module")
def solo(target: str) -> list[list[int]]:
    with LLM(target, numerics="exact", max_model_len=64, enable_prefix_caching=False) as llm:
        return [llm.generate(prompt, PARAMS, use_tqdm=False)[0].outputs[0].token_ids for prompt in prompts()]


def prompts() -> list[dict[str, Any]]:
    random = np.random.default_rng(16)
    return [{"prompt_token_ids": random.integers(0, TARGET_VOCAB, 6).tolist()} for _ in range(40)]


def permuted(folder: str, tmp_path: Path) -> str:
    """The same model under a tokenizer whose words 7 and 9 have changed places."""
    copy = tmp_path / "permuted"
    shutil.copytree(folder, copy)
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    words["t7"], words["t9"] = words["t9"], words["t7"]
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(copy)


def padded(folder: str, tokenizer_of: str, tmp_path: Path) -> str:
    """A model with more ids than its tokenizer has words."""
    copy = tmp_path / "padded"
    shutil.copytree(folder, copy)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(tokenizer_of) / name, copy)
    return str(copy)


def options(draft: str, **extra: Any) -> dict[str, Any]:
    drafting = {"proposer": "draft_model", "proposer_options": {"model": draft, **extra}, "num_speculative_tokens": 3}
    return {"numerics": "exact", "max_model_len": 64, **drafting}


def test_a_smaller_vocabulary_is_refused_with_both_sizes_named(
    target: str, tiny: Callable[..., str], worded: Callable[[str], str]
) -> None:
    """B016: a draft of 480 ids does not know all of the target's 500."""
    with pytest.raises(PacelineError) as caught:
        LLM(target, **options(worded(tiny(1, vocab_size=480))))
    assert "480 tokens, the target 500, and id 480 is nothing for the draft model, 't480'" in str(caught.value)


def test_a_permuted_tokenizer_is_refused_with_the_difference_named(target: str, tmp_path: Path) -> None:
    """B016: as many ids, and two of them mean other text."""
    with pytest.raises(PacelineError) as caught:
        LLM(target, **options(permuted(target, tmp_path)))
    assert "and id 7 is 't9' for the draft model, 't7' for the target" in str(caught.value)


@pytest.mark.parametrize("case", ["padded", "longer", "permuted", "larger", "smaller"])
def test_what_is_served_drafts_no_id_that_the_target_lacks(
    target: str,
    tiny: Callable[..., str],
    worded: Callable[[str], str],
    solo: list[list[int]],
    tmp_path: Path,
    case: str,
) -> None:
    """B016: ids beyond the target's are never drafted, and "intersect" drafts what both have; outputs stay."""
    draft, extra = {
        "padded": lambda: (padded(tiny(1, vocab_size=512), target, tmp_path), {}),
        "longer": lambda: (worded(tiny(1, vocab_size=512)), {}),
        "permuted": lambda: (permuted(target, tmp_path), {"vocabulary": "intersect"}),
        "larger": lambda: (worded(tiny(1, vocab_size=512)), {"vocabulary": "intersect"}),
        "smaller": lambda: (worded(tiny(1, vocab_size=480)), {"vocabulary": "intersect"}),
    }[case]()
    with LLM(target, **options(draft, **extra)) as llm:
        outputs = llm.generate(prompts(), PARAMS, use_tqdm=False)
        assert llm.engine.stats.num_draft_tokens > 0
    assert [output.outputs[0].token_ids for output in outputs] == solo
