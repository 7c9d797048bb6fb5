"""What every test that crosses packages needs to know about the repository."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPackage:
    """One distribution of this repository, as its ``pyproject.toml`` describes it."""

    folder: Path
    project: dict[str, Any]

    @property
    def name(self) -> str:
        return self.project["name"]

    @property
    def version(self) -> str:
        return self.project["version"]

    @property
    def entry_points(self) -> dict[str, dict[str, str]]:
        """Group -> name -> value, the console scripts among them."""
        groups = dict(self.project.get("entry-points", {}))
        if "scripts" in self.project:
            groups["console_scripts"] = self.project["scripts"]
        return groups

    @property
    def sources(self) -> list[Path]:
        """What the wheel must hold, relative to ``src``."""
        src = self.folder / "src"
        files = (path.relative_to(src) for path in sorted(src.rglob("*")) if path.is_file())
        return [path for path in files if path.suffix != ".pyc" and not path.parts[0].startswith(".")]


def read_package(folder: Path) -> LocalPackage:
    return LocalPackage(folder=folder, project=tomllib.loads((folder / "pyproject.toml").read_text())["project"])


def plugin_folders() -> list[Path]:
    """Of first-party plugins, then of those at community level."""
    return [path.parent for top in ("plugins", "contrib") for path in sorted((ROOT / top).glob("*/pyproject.toml"))]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def plugin_packages() -> list[LocalPackage]:
    return [read_package(folder) for folder in plugin_folders()]


@pytest.fixture(scope="session")
def code_packages(plugin_packages: list[LocalPackage]) -> list[LocalPackage]:
    """The packages that hold code: the core and every plugin."""
    return [read_package(ROOT / "core"), *plugin_packages]


@pytest.fixture(scope="session")
def tested_set() -> LocalPackage:
    """The distribution ``paceline``, which holds no code."""
    return read_package(ROOT)


TINY_SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """``(seed=0, **config) -> directory`` of a tiny random Llama; made once."""
    made: dict[tuple[Any, ...], str] = {}

    def path(seed: int = 0, **config: Any) -> str:
        key = (seed, *sorted(config.items()))
        if key not in made:
            import torch
            from transformers import LlamaConfig, LlamaForCausalLM

            torch.manual_seed(seed)
            folder = tmp_path_factory.mktemp("tiny")
            LlamaForCausalLM(LlamaConfig(**TINY_SIZES | config)).save_pretrained(folder)
            made[key] = str(folder)
        return made[key]

    return path


@pytest.fixture(scope="session")
def worded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """``model directory -> one of the same model with a tokenizer``: token 5 is the word "t5". Made once for each."""
    made: dict[str, str] = {}

    def with_words(path: str) -> str:
        if path not in made:
            from tokenizers import Tokenizer, models, pre_tokenizers
            from transformers import AutoConfig, PreTrainedTokenizerFast

            folder = tmp_path_factory.mktemp("worded")
            shutil.copytree(path, folder, dirs_exist_ok=True)
            words = {f"t{token}": token for token in range(AutoConfig.from_pretrained(path).vocab_size)}
            tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
            tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
            PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
            made[path] = str(folder)
        return made[path]

    return with_words


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """``(chain, second={}, **config) -> directory`` of a Llama that emits ``chain[t]`` after token ``t``.

    Embeddings are one-hot and the blocks add nothing, so only the last token matters. ``second`` is the next best
    choice, for when the first is banned.
    """

    def path(
        chain: Mapping[int, int], second: Mapping[int, int] | None = None, vocab_size: int = 64, **config: Any
    ) -> str:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"vocab_size": vocab_size, "hidden_size": vocab_size, "tie_word_embeddings": False}
        model = LlamaForCausalLM(LlamaConfig(**TINY_SIZES | sizes | config))
        with torch.no_grad():
            model.model.embed_tokens.weight.copy_(torch.eye(vocab_size))
            model.lm_head.weight.zero_()
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
            for token, following in chain.items():
                model.lm_head.weight[following, token] += 2.0
            for token, following in (second or {}).items():
                model.lm_head.weight[following, token] += 1.0
        folder = tmp_path_factory.mktemp("script")
        model.save_pretrained(folder)
        return str(folder)

    return path


@pytest.fixture(scope="session")
def reference() -> Callable[..., list[int]]:
    """``(model directory, prompt ids, num_tokens) -> ids``: greedy, by a plain transformers forward each step."""

    def generate(path: str, prompt: Sequence[int], num_tokens: int) -> list[int]:
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(path)
        ids = list(prompt)
        with torch.inference_mode():
            for _ in range(num_tokens):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(prompt) :]

    return generate


@pytest.fixture(scope="session")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Installs the distribution ``paceline-probes``: proposers ``probes:oracle``, ``probes:wrong``, ..."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "tests" / "probes" / "paceline_probes.py", site)
    info = site / "paceline_probes-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paceline-probes\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[paceline.plugins]\nprobes = paceline_probes\n")
    sys.path.insert(0, str(site))
    yield
    sys.path.remove(str(site))
