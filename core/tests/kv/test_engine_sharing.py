"""Sharing as an engine does it, on a tiny model in exact numerics: every bit is that of a run without a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from paceline import LLM, RequestOutput, SamplingParams
from paceline.engine.errors import RequestError
from paceline.engine.prompts import parse_prompt
from paceline.kv import invariants
from paceline.kv.lru import LRUPolicy

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
DRAFT_MODEL = {"proposer": "draft_model", "proposer_options": {"model": "target"}, "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def build(model: str) -> Iterator[Callable[..., LLM]]:
    made: list[LLM] = []

    def engine(**options: Any) -> LLM:
        made.append(LLM(model, numerics="exact", max_model_len=96, **{"block_size": 8, **options}))
        return made[-1]

    yield engine
    for llm in made:
        llm.close()
        invariants.check(llm.engine.kv)
        assert llm.engine.kv.num_used == 0


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, SIZES["vocab_size"], length).tolist()


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 6, "logprobs": 0, **fields})


def generate(llm: LLM, *prompts: Any, **fields: Any) -> list[RequestOutput]:
    given = [tokens if isinstance(tokens, dict) else {"prompt_token_ids": tokens} for tokens in prompts]
    return llm.generate(given, params(**fields), use_tqdm=False)


def scored(output: RequestOutput) -> list[Any]:
    return [
        (c.token_ids, [entry[t].logprob for t, entry in zip(c.token_ids, c.logprobs or (), strict=True)])
        for c in output.outputs
    ]


@pytest.mark.parametrize("options", [{}, DRAFT_MODEL], ids=["none", "draft_model"])
def test_every_partial_hit_gives_every_bit_of_a_cold_run(build: Callable[..., LLM], options: dict[str, Any]) -> None:
    plain, llm = build(enable_prefix_caching=False), build(**options)
    base, branch = prompt(1, 32), prompt(2, 8)
    generate(llm, base)
    for parting in range(1, 25, 2):
        tokens = base[:parting] + branch
        llm.reset_prefix_cache()
        generate(llm, base)
        [output] = generate(llm, tokens)
        shared = parting + (base[parting] == branch[0])
        assert output.num_cached_tokens >= shared, "down to the token, not to the block"
        assert scored(output) == scored(generate(plain, tokens)[0])


def test_the_draft_models_kv_is_copied_too(build: Callable[..., LLM]) -> None:
    llm = build(**DRAFT_MODEL)
    base = prompt(3, 32)
    generate(llm, base)
    request_id = llm.add_request(parse_prompt({"prompt_token_ids": [*base[:20], 1, 2]}), params(max_tokens=20))
    llm.engine.step()
    sequence = llm.engine.kv.sequences[request_id]
    assert sequence.num_computed == 22
    source = llm.engine.kv.cache.index.heads.longest(sequence.chain.parent_key(2), np.array(base[16:24]))
    assert source is not None and source[1] == 8
    copied, original = sequence.block_ids[2], source[0].block_id
    assert copied != original
    layers = llm.engine._committer._shared_layers
    assert len(layers) == 4, "two of the target, two of the draft model"
    for side in (side for layer in layers for side in layer):
        assert torch.equal(side[copied, :4], side[original, :4])
    output = _finish(llm)[request_id]
    assert output.metrics.num_accepted_tokens == output.metrics.num_draft_tokens > 0, "it drafts as its target does"


def _finish(llm: LLM) -> dict[str, RequestOutput]:
    outputs: dict[str, RequestOutput] = {}
    while llm.engine.has_requests:
        outputs |= {output.request_id: output for output in llm.engine.step().finished}
    return outputs


def test_samples_of_one_prompt_share_it_while_the_first_runs(build: Callable[..., LLM]) -> None:
    plain, llm = build(enable_prefix_caching=False), build(max_num_seqs=8)
    tokens = prompt(4, 21)
    ids = [llm.add_request(parse_prompt({"prompt_token_ids": tokens}), params(temperature=1.0, seed=0, max_tokens=20))]
    llm.engine.step()
    for seed in range(1, 5):
        one = params(temperature=1.0, seed=seed, max_tokens=20)
        ids.append(llm.add_request(parse_prompt({"prompt_token_ids": tokens}), one))
    llm.engine.step()
    kv = llm.engine.kv
    assert kv.num_used == 2 + 5, "two full blocks for all, a third for each"
    outputs = _finish(llm)
    assert [outputs[request_id].num_cached_tokens for request_id in ids] == [0, 20, 20, 20, 20]
    for seed, request_id in enumerate(ids):
        [wanted] = generate(plain, tokens, temperature=1.0, seed=seed, max_tokens=20)
        assert scored(outputs[request_id]) == scored(wanted)
    assert len({tuple(outputs[request_id].outputs[0].token_ids) for request_id in ids}) > 1


def test_reset_prefix_cache(build: Callable[..., LLM]) -> None:
    llm = build()
    tokens = prompt(6, 20)
    generate(llm, tokens)
    assert generate(llm, tokens)[0].num_cached_tokens > 0
    assert llm.reset_prefix_cache() is True
    assert llm.engine.kv.num_cached == 0
    assert generate(llm, tokens)[0].num_cached_tokens == 0

    request_id = llm.add_request(parse_prompt({"prompt_token_ids": prompt(7, 20)}), params())
    llm.engine.step()
    assert llm.reset_prefix_cache() is False, "a live request holds blocks"
    again = llm.add_request(parse_prompt({"prompt_token_ids": prompt(7, 20)}), params())
    outputs = _finish(llm)
    assert outputs[again].num_cached_tokens == 0, "what was computed before a reset is not found after it"
    assert scored(outputs[request_id]) == scored(outputs[again])
    assert llm.reset_prefix_cache() is True


def test_a_copy_survives_a_step_that_fails(build: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy fails when a second request of the same step needs blocks: the first is whole, and goes on."""
    plain, llm = build(enable_prefix_caching=False), build(num_gpu_blocks_override=8, max_num_seqs=4)
    base = prompt(8, 56)
    generate(llm, base[:50])
    tokens, other = [*base[:20], 1, 2], prompt(9, 20)
    ids = [llm.add_request(parse_prompt({"prompt_token_ids": each}), params()) for each in (tokens, other)]
    real = llm.engine.kv.cache.driver.victims
    calls = iter([False, True])

    def failing(count: int) -> list[int]:
        if next(calls, False):
            raise RuntimeError("no victim today")
        return real(count)

    monkeypatch.setattr(llm.engine.kv.cache.driver, "victims", failing)
    with pytest.raises(RuntimeError, match="no victim today"):
        llm.engine.step()
    invariants.check(llm.engine.kv)
    outputs = _finish(llm)
    for request_id, each in zip(ids, (tokens, other), strict=True):
        assert scored(outputs[request_id]) == scored(generate(plain, each)[0])


def test_retention_reaches_the_policy(build: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[int, tuple[int, float | None]] = {}
    evictable = LRUPolicy.evictable

    def listening(self: LRUPolicy, blocks: Any) -> None:
        told.update({block.depth: (block.retention_priority, block.retention_expiry_s) for block in blocks})
        evictable(self, blocks)

    monkeypatch.setattr(LRUPolicy, "evictable", listening)
    llm = build()
    generate(llm, prompt(10, 17))
    assert told == {1: (0, None)}
    generate(llm, {"prompt_token_ids": prompt(11, 17), "retention": {"priority": 3}})
    assert told == {1: (3, None)}
    generate(llm, {"prompt_token_ids": prompt(12, 17), "retention": {"priority": 2, "duration_s": 60}})
    priority, expiry_s = told[1]
    assert priority == 2 and expiry_s is not None and expiry_s > 60


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, '"retention" is a int; give a mapping'),
        ({"prio": 1}, '"retention" has the unknown key "prio"; did you mean "priority"?'),
        ({}, 'retention "priority" is None; give an integer from 1 on (the higher, the longer its blocks should stay)'),
        ({"priority": 0}, 'retention "priority" is 0; give an integer from 1 on'),
        ({"priority": True}, 'retention "priority" is True; give an integer from 1 on'),
        ({"priority": "1"}, "retention \"priority\" is '1'; give an integer from 1 on"),
        ({"priority": 1, "duration_s": 0}, 'retention "duration_s" is 0; give seconds above 0, or nothing for no end'),
        ({"priority": 1, "duration_s": float("inf")}, 'retention "duration_s" is inf; give seconds above 0'),
        ({"priority": 1, "duration_s": float("nan")}, 'retention "duration_s" is nan; give seconds above 0'),
        ({"priority": 1, "duration_s": True}, 'retention "duration_s" is True; give seconds above 0'),
        ({"priority": 1, "duration_s": "60"}, "retention \"duration_s\" is '60'; give seconds above 0"),
    ],
)
def test_what_is_wrong_with_a_retention_is_named(given: Any, message: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_prompt({"prompt": "x", "retention": given}, 2)
    assert str(error.value).startswith(f"PACELINE-E110: prompt 2: {message}")
