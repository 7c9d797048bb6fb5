"""``paceline train eagle``: corpus, training, measurement. Each stage goes on where the last run left it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.api import Command, CommandContext, PluginError, Session, TargetFacts
from paceline_eagle.checkpoint import save_head
from paceline_eagle.training.batches import FINAL
from paceline_eagle.training.card import Training, write_card
from paceline_eagle.training.corpus import answer, check_settings, prompt_texts, tokenized
from paceline_eagle.training.dataset import Dataset, Vocabulary, choose_vocabulary, held_out_digests, load_dataset
from paceline_eagle.training.initial import TargetWeights, head_config, initial_head
from paceline_eagle.training.measure import Measurement, measure
from paceline_eagle.training.options import TrainOptions
from paceline_eagle.training.progress import say
from paceline_eagle.training.teacher import teacher_of
from paceline_eagle.training.trainer import Recipe, Trainer

__all__ = ["TrainCommand"]

Prompts = Mapping[str, Sequence[int]]


class TrainCommand(Command):
    """One run.

    Args:
        options: What is asked for.
        context: Where sessions come from.
    """

    def __init__(self, options: TrainOptions, context: CommandContext) -> None:
        self._options = options
        self._context = context
        self._corpus: Path = options.corpus or options.output / "work" / "corpus"

    def run(self) -> None:
        """Answer, train, write and measure.

        Raises:
            PacelineError: naming what is wrong with the options, the prompts, the target or what an earlier run left.
            KeyboardInterrupt: with all on disk that the next run needs to go on.
        """
        texts = prompt_texts(self._options)
        prompts, layers = self._answer(texts)
        training = self._train(prompts, layers)
        measured, facts = self._measure(prompts)
        write_card(self._options, facts, training, measured)
        say(
            f"acceptance length {measured.acceptance_length:.3f} on {measured.num_prompts} held-out prompts "
            f"(chains of {self._options.num_drafts}); the head is in {self._options.output}"
        )

    def _answer(self, texts: Sequence[str]) -> tuple[Prompts, tuple[int, ...]]:
        """The corpus; what is returned are the prompts by digest, and the layers that the head reads."""
        options = self._options
        layers = options.layers or _default_layers(self._facts())
        recorded: list[int | str] = [*layers, FINAL]
        recorder = {"folder": str(self._corpus), "layers": recorded}
        with self._open("eagle:recorder", recorder, enable_prefix_caching=False) as session:
            prompts = tokenized(session, texts)
            _check_prompts(len(prompts), options.num_held_out)
            check_settings(self._corpus, recorded, session.facts, options)
            answer(session, prompts, self._corpus, options)
        return prompts, layers

    def _train(self, prompts: Prompts, layers: tuple[int, ...]) -> Training:
        options = self._options
        data = load_dataset(self._corpus, layers, prompts, options.num_held_out)
        vocabulary = choose_vocabulary(data, options.draft_vocab_size)
        with self._open() as session:
            facts, weights = session.facts, TargetWeights(session.open_checkpoint())
            config = head_config(facts, layers, len(vocabulary.ids))
            head = initial_head(config, weights, facts.num_layers, vocabulary.ids).to(facts.device)
            teacher = teacher_of(session, weights, vocabulary.ids, data.training[0].features[FINAL])
            state_file = self._state_file()
            trainer = Trainer(head, teacher, data, self._recipe(data, vocabulary), state_file, facts.device)
            trainer.run()
            replayed = trainer.held_out_acceptance()
        save_head(head, options.output, target_name=options.target, format=options.format)
        return Training(
            data=data,
            vocabulary=vocabulary,
            layers=layers,
            num_steps=trainer.num_steps,
            seconds=trainer.seconds,
            replayed=replayed,
        )

    def _measure(self, prompts: Prompts) -> tuple[Measurement, TargetFacts]:
        options = self._options
        held_out = held_out_digests(prompts, options.num_held_out)
        head = {"model": str(options.output)}
        with self._open("eagle", head, num_speculative_tokens=options.num_drafts) as session:
            asked = [prompt for digest, prompt in prompts.items() if digest in held_out]
            return measure(session, asked, options.answer_tokens), session.facts

    def _facts(self) -> TargetFacts:
        with self._open() as session:
            return session.facts

    def _open(
        self, proposer: str | None = None, proposer_options: Mapping[str, object] | None = None, **more: object
    ) -> Session:
        options = self._options
        return self._context.open(
            options.target,
            proposer=proposer,
            proposer_options=dict(proposer_options or {}),
            device=options.device,
            numerics=options.numerics,
            max_num_seqs=options.max_num_seqs,
            max_model_len=options.max_model_len,
            **more,
        )

    def _state_file(self) -> Path:
        folder = self._options.output / "work"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "training.pt"

    def _recipe(self, data: Dataset, vocabulary: Vocabulary) -> Recipe:
        options = self._options
        return Recipe(
            seed=options.seed,
            num_epochs=options.num_epochs,
            learning_rate=options.learning_rate,
            batch_rows=options.batch_tokens,
            ttt_steps=options.ttt_steps,
            ttt_share=options.ttt_share,
            feature_weight=options.feature_weight,
            num_drafts=options.num_drafts,
            corpus=_content(data, vocabulary),
        )


def _default_layers(facts: TargetFacts) -> tuple[int, ...]:
    """Low, middle and high, as EAGLE-3 has them; each once in a model of few layers."""
    num_layers = facts.num_layers
    return tuple(sorted({min(2, num_layers - 1), num_layers // 2, max(num_layers - 3, 0)}))


def _check_prompts(num_prompts: int, num_held_out: int) -> None:
    if num_prompts <= num_held_out:
        raise PluginError(
            f"there are {num_prompts} different prompts, and num_held_out is {num_held_out}: none is left to train on; "
            "give more prompts, or hold out fewer"
        )


def _content(data: Dataset, vocabulary: Vocabulary) -> str:
    """Digest of what is learnt: the samples' tokens and the ids drafted."""
    digest = hashlib.sha256(vocabulary.ids.tobytes())
    for sample in data.training:
        digest.update(f"{sample.num_prompt_tokens} {len(sample.tokens)} ".encode())
        digest.update(sample.tokens.tobytes())
    return digest.hexdigest()
