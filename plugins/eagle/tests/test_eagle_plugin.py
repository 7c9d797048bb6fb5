"""The declaration: options, capabilities, sizes of the KV, and a light entry point."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from paceline.api import DraftShape, ProposerCapabilities, TargetFacts
from paceline_eagle.plugin import EagleOptions, paceline_proposers

TREE = {"shape": "tree", "top_k": 3, "depth": 4, "total_tokens": 9}


@pytest.fixture
def describe(
    checkpoint: Callable[..., Any], target: TargetFacts, tmp_path: Path
) -> Callable[..., ProposerCapabilities]:
    """``(kind, options={}, target={}, **checkpoint) -> capabilities``."""
    spec = paceline_proposers()[0]

    def described(
        kind: str, options: dict[str, Any] | None = None, changes: dict[str, Any] | None = None, **settings: Any
    ) -> ProposerCapabilities:
        model = checkpoint(kind, **settings).write(tmp_path / "head")
        chosen = EagleOptions.model_validate({"model": model} | (options or {}))
        return spec.describe(chosen, dataclasses.replace(target, **(changes or {})))

    assert (spec.name, spec.requires_api) == ("eagle", ">=0.1,<0.2")
    return described


def test_a_chain(describe: Callable[..., ProposerCapabilities]) -> None:
    capabilities = describe("eagle3")
    assert capabilities.shape is DraftShape.CHAIN
    assert capabilities.max_tokens == 127
    assert capabilities.recompute_tail == 1
    assert capabilities.hidden_layers == (2, 3, 3)
    assert [capabilities.lookahead_slots(budget) for budget in (1, 5)] == [1, 5]
    assert describe("eagle").hidden_layers == ("final",)


def test_a_tree(describe: Callable[..., ProposerCapabilities]) -> None:
    capabilities = describe("eagle3", TREE)
    assert capabilities.shape is DraftShape.TREE
    assert capabilities.max_tokens == 9
    # Nodes that get children: all levels but the last, as wide as the budget allows.
    assert [capabilities.lookahead_slots(budget) for budget in (1, 2, 3, 4, 9)] == [0, 2, 6, 9, 9]
    widest = describe("eagle3", TREE | {"top_k": 64, "total_tokens": 64})
    assert widest.lookahead_slots(64) == 40 * 3  # the head knows 40 ids


def test_the_kv_is_one_layer_of_the_heads_sizes(describe: Callable[..., ProposerCapabilities]) -> None:
    (group,) = describe("eagle", changes={"dtype": "bfloat16"}).kv_groups
    assert (group.name, group.num_layers, group.num_kv_heads) == ("eagle", 1, 2)
    assert (group.key_size, group.value_size, group.dtype) == (8, 8, "bfloat16")


def test_entries_of_different_heads_are_told_apart(describe: Callable[..., ProposerCapabilities]) -> None:
    def fingerprint(**settings: Any) -> str:
        return describe("speculators_eagle3", **settings).kv_groups[0].fingerprint

    assert fingerprint() == fingerprint()
    assert len({fingerprint(), fingerprint(seed=1), fingerprint(norm_before_residual=True)}) == 3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": ""},
        {"model": "x", "shape": "star"},
        {"model": "x", "sampling": "random"},
        {"model": "x", "top_k": 0},
        {"model": "x", "depth": 0},
        {"model": "x", "total_tokens": 0},
        {"model": "x", "topk": 3},
    ],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        EagleOptions.model_validate(options)


def test_the_entry_point_imports_no_torch() -> None:
    heavy = "{'torch', 'transformers', 'safetensors'} & set(sys.modules)"
    program = f"import sys; from paceline_eagle.plugin import paceline_proposers as p; p(); print({heavy} or 'light')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "light"
