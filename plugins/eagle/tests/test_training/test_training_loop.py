"""The training loop: it learns, it is deterministic, and an interruption leaves no trace in the result."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paceline.api import PluginError
from paceline_eagle.checkpoint import load_head, save_head
from paceline_eagle.training.batches import collate
from paceline_eagle.training.initial import TargetWeights, head_config
from paceline_eagle.training.interrupt import interrupts_between_steps
from paceline_eagle.training.objective import losses, matches
from paceline_eagle.training.teacher import teacher_of
from paceline_eagle.training.unroll import unrolled

MakeTrainer = Callable[..., Any]


def weights_of(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer._head.state_dict().items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def num_right(trainer: Any, samples: list[Any]) -> int:
    batch = collate(samples, trainer._layers, "cpu")
    return int(matches(trainer._head, trainer._teacher, batch, 3).sum())


def excess_loss(trainer: Any, samples: list[Any]) -> float:
    """Of the first draft, above the entropy of what it is taught: what is left to learn."""
    batch = collate(samples, trainer._layers, "cpu")
    with torch.no_grad():
        taught = trainer._teacher.logits(batch.final[batch.rows(0)]).log_softmax(-1)
        known = trainer._teacher.draft_ids[batch.next_tokens[batch.rows(0)]] >= 0
        loss = losses(trainer._head, trainer._teacher, batch, 1, 0.0)[0].loss
    return float(loss + (taught.exp() * taught).sum(-1)[known].mean())


def test_learns(make_trainer: MakeTrainer, dataset: Any) -> None:
    trainer = make_trainer(num_epochs=20, feature_weight=0.0)
    before, right_before = excess_loss(trainer, dataset.training), num_right(trainer, dataset.training)
    trainer.run()
    assert trainer.num_steps_done == trainer.num_steps > 40
    assert 0 < excess_loss(trainer, dataset.training) < 0.3 * before
    assert num_right(trainer, dataset.training) > 1.5 * right_before


def test_is_a_function_of_its_arguments(make_trainer: MakeTrainer) -> None:
    first, again, other = make_trainer("a.pt"), make_trainer("b.pt"), make_trainer("c.pt", seed=2)
    assert equal(weights_of(first), weights_of(again))
    for trainer in (first, again, other):
        trainer.run()
    assert equal(weights_of(first), weights_of(again))
    assert not equal(weights_of(first), weights_of(other))


@pytest.mark.parametrize("stops", [(1,), (3, 4, 9)])
def test_an_interruption_changes_no_bit(stops: tuple[int, ...], make_trainer: MakeTrainer) -> None:
    whole = make_trainer("whole.pt")
    whole.run()
    done = []
    for stop in stops:

        def interrupt(step: int, stop: int = stop) -> None:
            done.append(step)
            if step == stop:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            make_trainer("parts.pt").run(interrupt)
    rest = make_trainer("parts.pt")
    assert rest.num_steps_done == stops[-1]
    rest.run(done.append)
    assert done == list(range(1, rest.num_steps + 1))  # no step twice
    assert equal(weights_of(whole), weights_of(rest))


def test_a_finished_run_stays_as_it_is(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    trainer.run()
    again = make_trainer()
    again.run(lambda step: pytest.fail("nothing is left to do"))
    assert equal(weights_of(trainer), weights_of(again))
    assert again.seconds == trainer.seconds > 0


def test_refuses_the_state_of_another_run(make_trainer: MakeTrainer) -> None:
    make_trainer(learning_rate=1e-3, num_epochs=1).run()
    with pytest.raises(PluginError, match=r"the state of a run with learning_rate = 0.001, and 0.002 is asked for; "):
        make_trainer(learning_rate=2e-3, num_epochs=1)
    with pytest.raises(PluginError, match="choose another output, or delete the file to begin anew"):
        make_trainer(learning_rate=1e-3, num_epochs=1, corpus="another")


@pytest.mark.parametrize("content", [b"", b"no state", b"PK\x03\x04 cut off"])
def test_names_a_broken_state(content: bytes, make_trainer: MakeTrainer, tmp_path: Path) -> None:
    (tmp_path / "state.pt").write_bytes(content)
    with pytest.raises(PluginError, match=r'state.pt" is no state of a training: (.|\n)*; delete it to begin anew'):
        make_trainer()


def test_an_interrupt_waits_for_the_step() -> None:
    steps, before = [], signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts_between_steps() as came:
        assert not came()
        os.kill(os.getpid(), signal.SIGINT)
        steps.append(came())
    assert steps == [True]
    assert signal.getsignal(signal.SIGINT) is before
    seen = []

    def elsewhere() -> None:
        with interrupts_between_steps() as came:
            seen.append(came())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [False]


def test_held_out_answers_teach_nothing(make_trainer: MakeTrainer, dataset: Any) -> None:
    trainer = make_trainer("a.pt")
    learnt = {trainer._data.training[i].prompt for batch in trainer._batches for i in batch}
    assert learnt == {sample.prompt for sample in dataset.training}
    assert not learnt & {sample.prompt for sample in dataset.held_out}
    trainer.run()
    before = weights_of(trainer)
    for sample in dataset.held_out:  # other held-out answers, the same head
        sample.tokens[sample.num_prompt_tokens :] = 7
        sample.features["final"].fill_(3.0)
    again = make_trainer("b.pt")
    again.run()
    assert equal(before, weights_of(again))


def test_the_loss_is_the_cross_entropy_over_drafted_tokens(make_trainer: MakeTrainer, dataset: Any) -> None:
    trainer = make_trainer()
    head, teacher = trainer._head, trainer._teacher
    batch = collate(dataset.training[:2], trainer._layers, "cpu")
    ids = head.draft_to_target
    forgotten = int(batch.next_tokens[batch.rows(0)[0]])
    teacher.draft_ids[forgotten] = -1  # as if it could not be drafted
    with torch.no_grad():
        results = losses(head, teacher, batch, 2, 0.5)
        found = matches(head, teacher, batch, 2)
        for step, (rows, states) in enumerate(unrolled(head, batch, teacher.embed(batch.tokens), 2)):
            logits = (head.readout(states) @ head.lm_head.weight.T).double()
            wanted = (batch.final[rows] @ teacher_rows(head, trainer)[ids].T).double().softmax(-1)
            cross = (wanted * -(logits - logits.logsumexp(-1, keepdim=True))).sum(-1)
            known = batch.next_tokens[rows] != forgotten
            assert 0 < int(known.sum()) < len(rows)
            gap = (head.readout(states) - batch.final[rows]).abs()
            distance = torch.where(gap < 1, gap**2 / 2, gap - 0.5).mean()
            assert float(results[step].loss) == pytest.approx(float(cross[known].mean() + 0.5 * distance), rel=1e-5)
            right = known & (ids[logits.argmax(-1)] == batch.next_tokens[rows])
            assert (results[step].num_right, results[step].num_rows) == (int(right.sum()), len(rows))
            assert torch.equal(found[step, rows], right)
    assert not found[1, batch.rows(0)[0]]


def teacher_rows(head: Any, trainer: Any) -> torch.Tensor:
    """The target's LM head, which the initial head's rows are copied from."""
    rows = torch.zeros(head.config.vocab_size, head.config.hidden_size)
    rows[head.draft_to_target] = head.lm_head.weight.detach()
    return rows


def test_teaches_with_the_targets_own_logits_where_they_are_no_plain_product(plain_session: Any) -> None:
    ids = np.array([3, 8, 20])
    weights = TargetWeights(plain_session.open_checkpoint())
    final = torch.randn(5, 32)

    def capped(hidden: torch.Tensor) -> torch.Tensor:
        return 2.0 * torch.tanh(plain_session.logits(hidden) / 2.0)

    capping = SimpleNamespace(facts=plain_session.facts, embed=plain_session.embed, logits=capped)
    for session, logits in ((plain_session, plain_session.logits), (capping, capped)):
        teacher = teacher_of(session, weights, ids, 4 * final)
        torch.testing.assert_close(teacher.logits(final), logits(final)[:, ids].clone(), rtol=1e-4, atol=1e-4)
    assert teacher.draft_ids[[3, 8, 20, 4]].tolist() == [0, 1, 2, -1]
    tokens = torch.tensor([5, 9])
    assert torch.equal(teacher.embed(tokens), weights.get("embed_tokens.weight")[tokens])


def test_starts_as_the_last_layer_once_more(make_trainer: MakeTrainer, target: str) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target).eval()
    tokens = torch.tensor([[3, 9, 4, 30, 11]])
    with torch.no_grad():
        states = model(tokens, output_hidden_states=True).hidden_states
        head = make_trainer()._head
        entering = [states[layer][0] for layer in head.config.aux_layers]

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            wide = [each.transpose(0, 1).repeat_interleave(2, 0)[None] for each in (k, v)]
            out = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1)[None], *wide, is_causal=True)
            return out[0].transpose(0, 1)

        made = head(torch.randn(5, 32), head.fuse(entering), torch.arange(5), attend)
        expected = model.lm_head(states[-1])[0][:, head.draft_to_target]
        torch.testing.assert_close(head.logits(made), expected, rtol=1e-4, atol=1e-4)


def test_names_the_tensor_that_a_target_lacks() -> None:
    weights = TargetWeights({"transformer.h.0.attn.c_attn.weight": torch.zeros(1)})
    with pytest.raises(PluginError, match=r'the target has 0 tensors named "...layers.2.mlp.up_proj.weight", and the '):
        weights.get("layers.2.mlp.up_proj.weight")
    with pytest.raises(PluginError, match="train for a target with the layers of Llama"):
        weights.get("norm.weight")


def test_names_what_a_configuration_lacks(plain_session: Any) -> None:
    facts = plain_session.facts
    config = {key: value for key, value in facts.config.items() if key not in ("rms_norm_eps", "intermediate_size")}
    with pytest.raises(PluginError, match="has no intermediate_size and no rms_norm_eps, which the head's layer takes"):
        head_config(replace(facts, config=config), (0, 1), 8)


@pytest.mark.parametrize("format", ["eagle", "speculators"])
def test_what_is_written_loads(format: Any, make_trainer: MakeTrainer, plain_session: Any, tmp_path: Path) -> None:
    trainer = make_trainer(num_epochs=1)
    trainer.run()
    head = trainer._head
    save_head(head, tmp_path / "head", target_name="tiny", format=format)
    loaded = load_head(str(tmp_path / "head"), plain_session.facts)
    assert loaded.config == head.config == head_config(plain_session.facts, (0, 1, 2), len(head.draft_to_target))
    assert torch.equal(loaded.draft_to_target, head.draft_to_target)
    halved = {name: tensor.half().float() for name, tensor in weights_of(trainer).items()}
    assert equal(halved, loaded.state_dict())
