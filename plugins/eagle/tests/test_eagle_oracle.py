"""A head that equals its target is followed wherever drafting starts: any misplaced token, feature or slot shows.

The target emits by its last two tokens, through one layer of attention that sees exactly the token before. The heads
know one of them from the embedding, the other from the target's feature or from their own last state.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline import LLM, RequestOutput, SamplingParams
from paceline.api import Drafts, ProposeBatch
from paceline_eagle.proposer import EagleProposer

VOCAB, HIDDEN, HEAD_SIZE, CONSTANT = 24, 54, 8, 48  # width: this token, the token before, a constant, nothing
KNOWN = [1, 2, 3, 5, 6, 7, 8, 10, 12, 13, 15, 17, 18, 20, 21, 23]  # what the EAGLE-3 head can draft
NEVER = 23  # it can draft that too, but the target never chooses it
EMBEDDING_SCALE, STREAM_SCALE = (HIDDEN / 2) ** 0.5, (HIDDEN / 3) ** 0.5  # what a norm makes of two ones, of three
THIS, BEFORE = slice(0, VOCAB), slice(VOCAB, 2 * VOCAB)
SETTINGS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "preempting": {"num_gpu_blocks_override": 12, "block_size": 8},
    "chunked": {"max_num_batched_tokens": 14, "max_num_seqs": 4},
    "cached": {"block_size": 4},
}


def pointing(distance: int) -> Tensor:
    """A query that, after RoPE, meets the key ``pointing(0)`` best at that many tokens before."""
    angles = distance * 10000.0 ** (-torch.arange(4) / 4)
    return 20 * torch.cat([angles.cos() + angles.sin(), angles.cos() - angles.sin()])


def output_rows() -> Tensor:
    torch.manual_seed(3)
    rows = torch.zeros(VOCAB, HIDDEN)
    rows[:, : 2 * VOCAB] = torch.randn(VOCAB, 2 * VOCAB) / 2
    rows[:, CONSTANT] = -20.0
    rows[[token for token in KNOWN if token != NEVER], CONSTANT] = 0.0
    return rows


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": HIDDEN, "head_dim": HEAD_SIZE, "num_attention_heads": 3, "num_key_value_heads": 3}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, intermediate_size=8, num_hidden_layers=6, **sizes, **ends))
    with torch.no_grad():
        model.model.embed_tokens.weight.zero_()
        model.model.embed_tokens.weight[:, THIS] = torch.eye(VOCAB)
        model.model.embed_tokens.weight[:, CONSTANT] = 1
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        attention = model.model.layers[0].self_attn
        for projection, vector in ((attention.q_proj, pointing(1)), (attention.k_proj, pointing(0))):
            projection.weight.zero_()
            projection.weight[:, CONSTANT] = vector.repeat(3) / EMBEDDING_SCALE
        attention.v_proj.weight.zero_()
        attention.v_proj.weight[:, THIS] = torch.eye(VOCAB) / EMBEDDING_SCALE
        attention.o_proj.weight[BEFORE] = torch.eye(VOCAB)
        model.lm_head.weight.copy_(output_rows())
    folder = tmp_path_factory.mktemp("target")
    model.save_pretrained(folder)
    return str(folder)


def layer_config(num_heads: int) -> dict[str, Any]:
    heads = {"num_attention_heads": num_heads, "num_key_value_heads": num_heads, "head_dim": HEAD_SIZE}
    return heads | {"hidden_size": HIDDEN, "intermediate_size": 8, "vocab_size": VOCAB, "num_hidden_layers": 1}


def eagle() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """``fc`` alone makes the next feature: the embedding's token, and as the one before it the feature's token."""
    torch.manual_seed(4)
    fc = torch.zeros(HIDDEN, 2 * HIDDEN)
    fc[THIS, THIS] = STREAM_SCALE * torch.eye(VOCAB)
    fc[CONSTANT, CONSTANT] = STREAM_SCALE
    fc[BEFORE, HIDDEN : HIDDEN + VOCAB] = torch.eye(VOCAB)
    layer = {f"self_attn.{name}_proj": torch.randn(24, HIDDEN) for name in "qkv"}
    layer |= {"self_attn.o_proj": torch.zeros(HIDDEN, 24), "post_attention_layernorm": torch.ones(HIDDEN)}
    layer |= mlp()
    return layer_config(3), {"fc.weight": fc} | {f"layers.0.{name}.weight": each for name, each in layer.items()}


def mlp() -> dict[str, Tensor]:
    return {
        "mlp.gate_proj": torch.randn(8, HIDDEN),
        "mlp.up_proj": torch.randn(8, HIDDEN),
        "mlp.down_proj": torch.zeros(HIDDEN, 8),
    }


def eagle3(mistaken_after: int | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Attention that sees itself alone shifts the state's tokens by one and takes the embedding's in.

    After one token, if given, it drafts ``NEVER``.
    """
    torch.manual_seed(4)
    fc = torch.zeros(HIDDEN, 3 * HIDDEN)
    fc[:, HIDDEN : 2 * HIDDEN] = torch.eye(HIDDEN)  # the feature in the middle
    to_itself = torch.zeros(9 * HEAD_SIZE, 2 * HIDDEN)
    to_itself[:, CONSTANT] = pointing(0).repeat(9) / EMBEDDING_SCALE
    values, mixed, one = torch.zeros(72, 2 * HIDDEN), torch.zeros(HIDDEN, 72), torch.eye(VOCAB)
    values[0:24, THIS] = one / EMBEDDING_SCALE
    values[24:48, HIDDEN : HIDDEN + VOCAB] = one / STREAM_SCALE
    values[48:72, HIDDEN + VOCAB : HIDDEN + 2 * VOCAB] = one / STREAM_SCALE
    mixed[THIS, 0:24], mixed[THIS, 24:48] = one, -one
    mixed[BEFORE, 24:48], mixed[BEFORE, 48:72] = one, -one
    layer = {"self_attn.q_proj": to_itself, "self_attn.k_proj": to_itself.clone()}
    layer |= {"self_attn.v_proj": values, "self_attn.o_proj": mixed} | mlp()
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    tensors = {f"midlayer.{name}.weight": each for name, each in layer.items()}
    tensors |= {f"midlayer.{name}.weight": torch.ones(HIDDEN) for name in norms}
    rows = output_rows()[KNOWN]
    if mistaken_after is not None:
        rows[KNOWN.index(NEVER), mistaken_after] = 50.0
    tensors |= {"fc.weight": fc, "norm.weight": torch.ones(HIDDEN), "lm_head.weight": rows}
    tensors["d2t"] = torch.tensor(KNOWN) - torch.arange(len(KNOWN))
    return layer_config(9) | {"draft_vocab_size": len(KNOWN)}, tensors


@pytest.fixture
def engine(checkpoint_type: type, target: str, tmp_path: Path) -> Callable[..., LLM]:
    """``(head, options, num drafts, **settings) -> LLM``."""

    def build(head: tuple[dict, dict], options: dict[str, Any], num_drafts: int, **settings: Any) -> LLM:
        folder = checkpoint_type("eagle3", *head).write(tmp_path)
        return LLM(
            target,
            numerics="exact",
            max_model_len=128,
            proposer="eagle",
            proposer_options={"model": folder} | options,
            num_speculative_tokens=num_drafts,
            **settings,
        )

    return build


def rounds(llm: LLM, temperature: float) -> list[RequestOutput]:
    """Prompts of all sorts, and again with the answers in them."""
    random = np.random.default_rng(2)
    shared = random.integers(0, VOCAB, 17).tolist()
    ids = [random.integers(0, VOCAB, n).tolist() for n in (1, 2, 23)] + [shared, [*shared, 3, 4], [*shared, 9]]
    params = SamplingParams(max_tokens=16, seed=1, temperature=temperature, ignore_eos=True)
    first = llm.generate([{"prompt_token_ids": tokens} for tokens in ids], params, use_tqdm=False)
    longer = [{"prompt_token_ids": o.prompt_token_ids + o.outputs[0].token_ids[:13]} for o in first]
    return first + llm.generate(longer, params, use_tqdm=False)


def total(outputs: list[RequestOutput], name: str) -> int:
    return sum(getattr(output.metrics, name) for output in outputs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("head", [eagle, eagle3])
def test_every_draft_of_a_chain_is_followed(
    engine: Callable[..., LLM], head: Callable[[], Any], setting: str, temperature: float
) -> None:
    with engine(head(), {}, 3, **SETTINGS[setting]) as llm:
        outputs = rounds(llm, temperature)
        assert (llm.engine.stats.num_preemptions > 0) == (setting == "preempting")
    assert total(outputs, "num_accepted_tokens") == total(outputs, "num_draft_tokens") > 60


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_tree_is_followed_to_a_leaf(engine: Callable[..., LLM], setting: str, temperature: float) -> None:
    options = {"shape": "tree", "top_k": 2, "depth": 3, "total_tokens": 10}
    with engine(eagle3(), options, 10, **SETTINGS[setting]) as llm:
        outputs = rounds(llm, temperature)
    steps = total(outputs, "num_drafts")
    accepted = total(outputs, "num_accepted_tokens")
    assert accepted > 2 * steps
    if setting == "roomy":  # where no budget is cut, but for the last steps of a request
        assert accepted >= 3 * (steps - len(outputs))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_are_right_again_after_a_reject(
    engine: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """The head errs after one token only: every draft up to there is followed, and none behind."""
    mistaken_after = 7
    wanted: list[int] = []
    propose = EagleProposer.propose

    def spy(self: EagleProposer, batch: ProposeBatch) -> Drafts:
        drafts = propose(self, batch)
        for last, row, length in zip(batch.last_tokens, drafts.tokens, drafts.lengths, strict=True):
            before = [last, *row[: length - 1]]
            wanted.append(before.index(mistaken_after) if mistaken_after in before else int(length))
        return drafts

    monkeypatch.setattr(EagleProposer, "propose", spy)
    with engine(eagle3(mistaken_after), {}, 3) as llm:
        outputs = rounds(llm, temperature)
    assert total(outputs, "num_accepted_tokens") == sum(wanted)
    assert len(wanted) // 2 > wanted.count(0) > 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_the_head_does_not_know_is_not_drafted(engine: Callable[..., LLM], temperature: float) -> None:
    params = SamplingParams(max_tokens=8, seed=1, temperature=temperature, allowed_token_ids=[0, 4, 9], ignore_eos=True)
    with engine(eagle3(), {}, 3) as llm:
        outputs = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
    assert set(outputs[0].outputs[0].token_ids) <= {0, 4, 9}
    assert total(outputs, "num_draft_tokens") == 0


@pytest.mark.parametrize(("shape", "num_drafts"), [("chain", 3), ("tree", 10)])
def test_greedy_drafts_at_a_temperature(engine: Callable[..., LLM], shape: str, num_drafts: int) -> None:
    """They are followed less often than coupled ones, of which an equal head's are never missed."""
    with engine(eagle3(), {"shape": shape, "sampling": "greedy", "top_k": 2, "depth": 3}, num_drafts) as llm:
        outputs = rounds(llm, 1.0)
    assert 0 < total(outputs, "num_accepted_tokens") < 2 * total(outputs, "num_drafts")
