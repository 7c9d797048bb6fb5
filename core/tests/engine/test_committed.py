"""What a proposer is told: rows, ranges, features and top tokens, against a plain transformers forward."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, RequestOutput, SamplingParams

LAYERS = (0, 1, "final")
PROMPTS = [list(range(7, 47)), [5, 9], [400, 3, 3, 401, 17, 80, 80, 2, 1, 60, 61]]


class Plain:
    """transformers' own forward over a whole sequence, once per sequence."""

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(path)
        self.made: dict[tuple[int, ...], Any] = {}

    def __call__(self, tokens: Sequence[int]) -> Any:
        key = tuple(tokens)
        if key not in self.made:
            with torch.inference_mode():
                self.made[key] = self.model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
        return self.made[key]

    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self(tokens).logits[0, -1].argmax()))
        return tokens


@pytest.fixture(scope="module")
def plain(tiny: Callable[..., str]) -> Plain:
    return Plain(tiny())


@pytest.fixture
def record(tiny: Callable[..., str], plain: Plain, test_plugins: Any) -> Callable[..., tuple[list[RequestOutput], Any]]:
    """``(prompts, num_tokens=8, rounds=1, **options) -> (outputs of the last round, its observed batches)``."""

    def run(prompts: list[list[int]], num_tokens: int = 8, rounds: int = 1, **options: Any) -> Any:
        own = {"recompute_tail": options.pop("recompute_tail", 0), "right": 2}
        truth = [plain.greedy(prompt, num_tokens) for prompt in prompts]
        settings = {
            "proposer": "engine_probes:recorder",
            "proposer_options": {"truth": truth, **own},
            "max_model_len": 64,
        }
        with LLM(tiny(), numerics="exact", num_speculative_tokens=3, **settings, **options) as llm:
            recorder = test_plugins.built[-1]
            for _ in range(rounds):
                recorder.observed.clear()
                outputs = llm.generate(
                    [{"prompt_token_ids": prompt} for prompt in prompts],
                    SamplingParams(temperature=0.0, max_tokens=num_tokens),
                )
            assert llm.engine.stats.num_accepted_tokens < llm.engine.stats.num_draft_tokens
        assert [output.prompt_token_ids + output.outputs[0].token_ids for output in outputs] == truth
        return outputs, recorder.observed

    return run


def of_request(observed: Sequence[Any], request_id: str) -> list[SimpleNamespace]:
    """The parts of each batch that are about one request."""
    parts = []
    for batch in observed:
        ids = [request.request_id for request in batch.requests]
        if request_id not in ids:
            continue
        index = ids.index(request_id)
        rows = np.flatnonzero(batch.row_request == index)
        parts.append(
            SimpleNamespace(
                rows=rows,
                batch=batch,
                positions=batch.positions[rows].tolist(),
                tokens=batch.tokens[rows].tolist(),
                next_tokens=batch.next_tokens[rows].tolist(),
                computed=tuple(batch.computed[index].tolist()),
                restored=tuple(batch.restored[index].tolist()),
                emitted=tuple(batch.emitted[index].tolist()),
                recomputation=bool(batch.recomputation[index]),
                known=batch.requests[index].tokens.tolist(),
            )
        )
    return parts


def check_rows(parts: list[SimpleNamespace], output: RequestOutput, plain: Plain) -> None:
    """Every row is a true token with its successor, its features and its top tokens."""
    truth = output.prompt_token_ids + output.outputs[0].token_ids
    own = plain(truth)
    for part in parts:
        assert part.positions == list(range(*part.computed))
        assert part.tokens == [truth[position] for position in part.positions]
        assert part.next_tokens == [truth[position + 1] for position in part.positions]
        for layer in LAYERS:
            wanted = own.hidden_states[-1 if layer == "final" else layer][0, part.positions]
            assert torch.allclose(part.batch.features[layer][part.rows], wanted, atol=1e-4)
        assert torch.equal(part.batch.top_tokens[part.rows], own.logits[0, part.positions].topk(3).indices)


@pytest.mark.parametrize("chunk", [64, 11], ids=["whole prompts", "chunks"])
def test_rows_features_and_top_tokens(record: Callable[..., Any], plain: Plain, chunk: int) -> None:
    outputs, observed = record(PROMPTS, max_num_batched_tokens=chunk, max_num_seqs=3, enable_prefix_caching=False)
    for output in outputs:
        parts = of_request(observed, output.request_id)
        check_rows(parts, output, plain)
        assert not any(part.recomputation for part in parts) and {part.restored for part in parts} == {(0, 0)}
        # What was computed runs from the start without a gap; the last step of a request, which ends it, is not told.
        ends = [part.computed for part in parts]
        assert ends[0][0] == 0 and all(left[1] == right[0] for left, right in itertools.pairwise(ends))
        # Tokens emitted run on from the prompt, and are known at once.
        emitted = [part.emitted for part in parts]
        num_prompt = len(output.prompt_token_ids)
        assert emitted[0][0] == num_prompt and all(left[1] == right[0] for left, right in itertools.pairwise(emitted))
        assert all(len(part.known) == part.emitted[1] == max(part.computed[1] + 1, num_prompt) for part in parts)
    if chunk == 11:
        assert len(of_request(observed, outputs[0].request_id)) > 5, "the long prompt came in chunks"


@pytest.mark.parametrize("recompute_tail", [0, 2, 20])
def test_a_prefix_hit_is_restored_and_its_tail_run_again(
    record: Callable[..., Any], plain: Plain, recompute_tail: int
) -> None:
    outputs, observed = record(PROMPTS[:1], rounds=2, block_size=8, recompute_tail=recompute_tail)
    first, *rest = of_request(observed, outputs[0].request_id)
    check_rows([first, *rest], outputs[0], plain)
    assert first.restored == (0, 40) and {part.restored for part in rest} == {(0, 0)}
    assert first.computed == (40 - max(recompute_tail, 1), 40), "the last token is computed in any case"
    assert outputs[0].num_cached_tokens == 40 - max(recompute_tail, 1)
    assert not first.recomputation


def test_the_tail_is_run_without_writing_the_targets_kv(tiny: Callable[..., str], test_plugins: Any) -> None:
    options = {"proposer": "engine_probes:recorder", "proposer_options": {"recompute_tail": 5}, "block_size": 8}
    with LLM(tiny(), numerics="exact", max_model_len=64, **options) as llm:
        prompt = {"prompt_token_ids": PROMPTS[0]}
        greedy = SamplingParams(temperature=0.0, max_tokens=1)
        [cold] = llm.generate(prompt, greedy)
        layers = llm.engine._committer._layers
        before = [(k.clone(), v.clone()) for k, v in layers]
        for k, v in layers:  # were the tail written, it would put its KV back to what it was
            k.mul_(1.5), v.mul_(1.5)
        llm.generate(prompt, greedy)
        assert all(
            torch.equal(k, 1.5 * old_k) and torch.equal(v, 1.5 * old_v)
            for (k, v), (old_k, old_v) in zip(layers, before, strict=True)
        )
    assert cold.num_cached_tokens == 0


def test_work_repeated_after_a_preemption_is_marked(record: Callable[..., Any], plain: Plain) -> None:
    prompts = [[1] * 9, [2] * 9]
    outputs, observed = record(
        prompts, num_tokens=14, block_size=4, num_gpu_blocks_override=8, enable_prefix_caching=False
    )
    parts = of_request(observed, outputs[1].request_id)
    check_rows(parts, outputs[1], plain)
    assert outputs[1].metrics.num_preemptions == 1
    [at] = [index for index, part in enumerate(parts) if part.recomputation]
    before, again = parts[at - 1], parts[at]
    assert again.computed == (0, before.computed[1] + 1) and again.emitted[0] == before.emitted[1]
    assert not any(part.recomputation for part in of_request(observed, outputs[0].request_id))


def test_tree_rows_are_told_along_the_followed_path(harness: Callable[..., Any], fake: SimpleNamespace) -> None:
    def tree(request: Any, budget: int) -> tuple[list[int], list[int]]:
        """Wrong, right, below the right one: wrong, right."""
        a, b = fake.right_drafts(request, 2)
        return ([(a + 1) % 16, a, (b + 1) % 16, b][:budget], [-1, -1, 1, 1][:budget])

    engine = harness(draft=tree, shape=fake.TREE, num_speculative_tokens=4, hidden_layers=("tokens",), target_top_k=1)
    engine.add([1, 2, 3], "r", max_tokens=9)
    engine.run()
    assert engine.tokens("r") == fake.continuation([1, 2, 3], 9)
    truth = [1, 2, 3, *engine.tokens("r")]
    prompt, first, *_ = of_request(engine.proposer.observed, "r")
    assert prompt.computed == (0, 3) and first.computed == (3, 6) and first.emitted == (4, 7)
    assert (first.positions, first.tokens, first.next_tokens) == ([3, 4, 5], truth[3:6], truth[4:7])
    assert first.batch.features["tokens"][first.rows].flatten().tolist() == truth[3:6]
    assert first.batch.top_tokens[first.rows].flatten().tolist() == truth[4:7]


def test_requests_that_ended_are_not_told(harness: Callable[..., Any], fake: SimpleNamespace) -> None:
    engine = harness(draft=fake.right_drafts)
    engine.add([1], "short", max_tokens=1)
    engine.add([2], "long", max_tokens=3, draft_limit=0)
    engine.run()
    assert [[r.request_id for r in batch.requests] for batch in engine.proposer.observed] == [["long"], ["long"]]
