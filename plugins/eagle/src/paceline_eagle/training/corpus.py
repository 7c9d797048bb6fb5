"""The first stage: the target answers the prompts, and the recorder keeps what it thought."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.api import Generation, PluginError, Session, TargetFacts
from paceline_eagle.training.options import TrainOptions
from paceline_eagle.training.progress import stage_progress
from paceline_eagle.training.prompts import read_prompts, template_prompts
from paceline_eagle.training.shards import prompt_digest, read_index, shard_files

__all__ = ["answer", "check_settings", "prompt_texts", "recorded_prompts", "tokenized"]

_SETTINGS_FILE = "corpus.json"


def prompt_texts(options: TrainOptions) -> list[str]:
    """The texts to answer, at most ``num_prompts``."""
    if options.prompts is None:
        return template_prompts(options.num_prompts, options.seed)
    return read_prompts(options.prompts)[: options.num_prompts]


def tokenized(session: Session, texts: Sequence[str]) -> dict[str, list[int]]:
    """``digest -> tokens`` of the prompts through the chat template, each once, in their order."""
    prompts = (session.chat_prompt(text) for text in texts)
    return {prompt_digest(prompt): prompt for prompt in prompts}


def recorded_prompts(folder: Path) -> set[str]:
    """Digests of the prompts that have their answers."""
    return {prompt for file in shard_files(folder) for prompt, _, _ in read_index(file)}


def answer(session: Session, prompts: Mapping[str, Sequence[int]], folder: Path, options: TrainOptions) -> None:
    """Let the target answer the prompts that are not recorded yet.

    What is finished is written at the latest when the session closes, so that an interrupted run goes on where it was.

    Args:
        session: One whose proposer is the recorder of ``folder``.
        prompts: ``digest -> tokens``.
        folder: The corpus.
        options: Length and temperature of the answers.
    """
    done = recorded_prompts(folder)
    waiting = [prompt for digest, prompt in prompts.items() if digest not in done]
    num_tokens = 0
    with stage_progress("answering", len(prompts), len(prompts) - len(waiting)) as progress:

        def count(index: int, generation: Generation) -> None:
            nonlocal num_tokens
            num_tokens += len(generation.token_ids)
            progress.advance(f"{num_tokens} tokens")

        session.generate(
            waiting,
            max_tokens=options.answer_tokens,
            temperature=options.temperature,
            seed=options.seed + len(done),
            on_finished=count,
        )


def check_settings(folder: Path, layers: Sequence[int | str], facts: TargetFacts, options: TrainOptions) -> None:
    """Write down what the corpus is made with, or compare with what was written.

    Raises:
        PluginError: naming what differs.
    """
    file = folder / _SETTINGS_FILE
    asked: dict[str, Any] = {
        "weights": facts.weights_fingerprint,
        "answer_tokens": options.answer_tokens,
        "temperature": options.temperature,
        "layers": list(layers),
    }
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asked, indent=2) + "\n", encoding="utf-8")
        return
    found = _read_settings(file)
    for name, value in asked.items():
        same = set(value) <= set(found.get(name, ())) if name == "layers" else found.get(name) == value
        if not same:
            raise PluginError(
                f'the corpus "{folder}" was made with {name} = {found.get(name)!r}, and {value!r} is asked for; ask '
                "for the same, or choose another folder for the corpus"
            )


def _read_settings(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PluginError(f'"{file}" cannot be read: {error}; delete the folder of the corpus') from error
    if not isinstance(found, dict):
        raise PluginError(f'"{file}" holds no JSON object; delete the folder of the corpus')
    return found
