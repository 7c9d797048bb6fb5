"""The declaration, the options, and the tokenizers that it can and cannot work with."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pluggy
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer, models

from paceline.api import PluginError, TargetFacts, hooks
from paceline_llguidance import plugin
from paceline_llguidance.plugin import LLGuidanceOptions
from paceline_llguidance.vocabulary import END, Vocabulary


def test_declaration(target: TargetFacts) -> None:
    manager = pluggy.PluginManager("paceline")
    manager.add_hookspecs(hooks)
    manager.register(plugin)
    manager.check_pending()
    ((spec,),) = manager.hook.paceline_constraints()
    assert (spec.name, spec.requires_api) == ("llguidance", ">=0.1,<0.2")
    kinds = spec.describe(spec.options(), target).structured_outputs
    assert kinds == {"json", "json_object", "regex", "choice", "grammar"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"whitespace": "loose"}, ["whitespace", "'bounded', 'compact' or 'flexible'"]),
        ({"max_cached_grammars": 0}, ["max_cached_grammars", "greater than or equal to 1"]),
        ({"white_space": "compact"}, ["white_space", "not permitted"]),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValidationError) as refusal:
        LLGuidanceOptions.model_validate(options)
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_declaring_loads_neither_llguidance_nor_torch() -> None:
    heavy = "{'llguidance', 'torch', 'transformers', 'tokenizers'}"
    code = f"import sys, paceline_llguidance.plugin; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_building_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, paceline_llguidance.constraint; print({'torch', 'transformers', 'tokenizers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_target_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(PluginError, match="need the target's tokenizer, and none was loaded; load the model with it"):
        Vocabulary(None, 8)


def test_a_slow_tokenizer_is_refused() -> None:
    with pytest.raises(PluginError, match="need a fast tokenizer, and SimpleNamespace is a slow one; convert it"):
        Vocabulary(SimpleNamespace(), 8)


def test_a_tokenizer_whose_tokens_are_no_bytes_is_refused() -> None:
    words = Tokenizer(models.WordLevel(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with pytest.raises(PluginError, match=r"llguidance cannot read the SimpleNamespace .* decoder type.*byte-level or"):
        Vocabulary(SimpleNamespace(backend_tokenizer=words), 2)


def test_the_tokenizer_is_left_as_it_was(tokenizer: SimpleNamespace, vocab_size: int) -> None:
    assert Vocabulary(tokenizer, vocab_size).tokenizer.vocab_size == vocab_size + 1
    assert tokenizer.backend_tokenizer.token_to_id(END) is None
