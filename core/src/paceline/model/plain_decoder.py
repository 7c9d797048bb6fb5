"""A decoder that is plainly like Llama, run by the native kernels in one call.

What it is is told by its parts, not by its architecture's name: RMS norms, rotary halves over whole heads, grouped
queries, SwiGLU, two residual sums. Whether it really is one is told by its numbers: ``agrees`` compares the two.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from paceline.model.architecture import attention_windows, decoder_layers, max_positions, text_config
from paceline.model.bridge import own_attention
from paceline.model.packing import TOGETHER
from paceline.native.library import PANEL, NativeLibrary, pointer
from paceline.ops.batch import AttentionBatch
from paceline.ops.native_attention import HEAD_SIZES
from paceline.ops.native_rows import native_rows
from paceline.ops.packed_linear import PackedLinear

__all__ = ["PlainDecoder", "is_plain"]

_PROBE_TOKENS = 24
_PROBE_BLOCK = 16
_TOLERANCE = 1e-4  # of the largest logit

_LAYER_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_POINTER, _INT64, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class LayerStruct(ctypes.Structure):
    """`Layer` of decoder.h."""

    _fields_ = (
        *((name, _POINTER) for name in ("input_norm", "q_norm", "k_norm", "post_norm")),
        *((name, _POINTER) for name in ("qkv", "o", "gate_up", "down")),
        *((name, _POINTER) for name in ("qkv_scale", "o_scale", "gate_up_scale", "down_scale")),
        *((name, _POINTER) for name in ("qkv_bias", "o_bias", "gate_up_bias", "down_bias")),
        *((name, _POINTER) for name in ("keys", "values", "tap")),
        ("window", _INT64),
    )


class DecoderStruct(ctypes.Structure):
    """`Decoder` of decoder.h."""

    _fields_ = (
        *(
            (name, _INT64)
            for name in (
                *("num_layers", "hidden", "heads", "kv_heads", "head_size", "inner", "block_size"),
                *("num_threads", "weight_bits"),
            )
        ),
        ("eps", _FLOAT),
        ("scale", _FLOAT),
        ("layers", _POINTER),
    )


class SpaceStruct(ctypes.Structure):
    """`Space` of decoder.h."""

    _fields_ = tuple((name, _POINTER) for name in ("normed", "qkv", "attended", "gate_up"))


def is_plain(model: PreTrainedModel, library: NativeLibrary) -> bool:
    """Whether a packed model is a plain decoder: by its parts, then by its logits on a few tokens."""
    return _has_plain_parts(model) and _agrees(model, library)


@torch.inference_mode()
def _agrees(model: PreTrainedModel, library: NativeLibrary) -> bool:
    first = decoder_layers(model)[0].self_attn
    shape = (2, _PROBE_BLOCK, first.k_proj.out_features // first.head_dim, first.head_dim)
    caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in decoder_layers(model)]
    vocab_size = model.get_input_embeddings().num_embeddings
    ids = torch.randint(0, vocab_size, (_PROBE_TOKENS,), generator=torch.Generator().manual_seed(0))
    rows = torch.arange(_PROBE_TOKENS)
    plain = PlainDecoder(model, library, caches, ())
    for start in (0, max((max_positions(model.config) or 0) - _PROBE_TOKENS, 0)):  # some change with the position
        batch = AttentionBatch.build(
            query_starts=np.array([0, _PROBE_TOKENS]),
            visible=rows.numpy() + 1,
            slots=rows.numpy(),
            block_tables=np.array([[0, 1]]),
            block_size=_PROBE_BLOCK,
        )
        logits, _ = plain.forward(ids, rows + start, batch, rows)
        with own_attention(model):
            wanted = model(input_ids=ids[None], position_ids=rows[None] + start, use_cache=False).logits[0]
        if not bool((logits - wanted).abs().max() <= _TOLERANCE * wanted.abs().max()):
            return False
    return True


def _has_plain_parts(model: PreTrainedModel) -> bool:
    decoder = model.get_decoder()
    names = {name for name, _ in decoder.named_children()}
    text = text_config(model.config)
    return (
        names == {"embed_tokens", "layers", "norm", "rotary_emb"}
        and type(decoder.embed_tokens) is nn.Embedding
        and isinstance(model.get_output_embeddings(), PackedLinear)
        and getattr(text, "hidden_act", None) == "silu"
        and _has_weight(decoder.norm)
        and all(_is_plain_layer(layer) for layer in decoder_layers(model))
        and _turns_whole_heads(model)
    )


def _has_weight(norm: nn.Module) -> bool:
    return isinstance(getattr(norm, "weight", None), nn.Parameter)


def _turns_whole_heads(model: PreTrainedModel) -> bool:
    hidden = torch.zeros(1, 1, model.get_input_embeddings().embedding_dim)
    cos, _ = model.get_decoder().rotary_emb(hidden, torch.zeros(1, 1, dtype=torch.int64))
    return bool(cos.shape[-1] == getattr(decoder_layers(model)[0].self_attn, "head_dim", None))


def _is_plain_layer(layer: nn.Module) -> bool:
    if {name for name, _ in layer.named_children()} != _LAYER_PARTS:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    parts = {name for name, _ in attention.named_children()}
    linears = [getattr(attention, name, None) for name in _ATTENTION_PARTS] + [
        getattr(mlp, name, None) for name in _MLP_PARTS - {"act_fn"}
    ]
    return (
        _has_weight(layer.input_layernorm)
        and _has_weight(layer.post_attention_layernorm)
        and parts in (_ATTENTION_PARTS, _ATTENTION_PARTS | _HEAD_NORMS)
        and {name for name, _ in mlp.named_children()} == _MLP_PARTS
        and all(isinstance(linear, PackedLinear) for linear in linears)
        and attention.head_dim in HEAD_SIZES
        and all(getattr(attention, name).weight.shape == (attention.head_dim,) for name in parts & _HEAD_NORMS)
        and getattr(attention, "sinks", None) is None
        and attention.is_causal
    )


def _epsilon(norm: nn.Module) -> float:
    return float(getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0)))


class PlainDecoder:
    """Runs a plain decoder on one set of KV layers.

    Args:
        model: A packed model for which ``is_plain`` holds.
        library: The kernels.
        layers: ``(k, v)`` per layer, float32 ``[num_blocks, block_size, kv_heads, head_size]``.
        taps: As for ``ModelRunner``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        library: NativeLibrary,
        layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
        taps: tuple[int | str, ...],
    ) -> None:
        self._decoder = model.get_decoder()
        self._head: PackedLinear = model.get_output_embeddings()
        self._library = library
        self._taps = taps
        self._caches = layers  # the struct points into them
        own = list(decoder_layers(model))
        first = own[0]
        self._hidden = self._decoder.norm.weight.shape[0]
        self._heads = first.self_attn.q_proj.out_features // first.self_attn.head_dim
        self._head_size = first.self_attn.head_dim
        self._inner = first.mlp.gate_proj.out_features
        self._columns = [
            sum(_padded(getattr(part, name).out_features) for name in names)
            for part, names in zip((first.self_attn, first.mlp), TOGETHER, strict=True)
        ]
        windows = attention_windows(model.config)
        structs = [_layer(*parts) for parts in zip(own, layers, windows, strict=True)]
        self._layers = (LayerStruct * len(own))(*structs)
        self._struct = DecoderStruct(
            len(own),
            self._hidden,
            self._heads,
            first.self_attn.k_proj.out_features // self._head_size,
            self._head_size,
            self._inner,
            layers[0][0].shape[1],
            1,
            first.self_attn.q_proj.weight_bits,
            _epsilon(self._decoder.norm),
            float(first.self_attn.scaling),
            ctypes.addressof(self._layers),
        )

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, batch: AttentionBatch, logit_rows: torch.Tensor
    ) -> tuple[torch.Tensor, dict[int | str, torch.Tensor]]:
        """Logits float32 ``[R, vocab]`` and the tapped features; see ``ModelRunner.forward``."""
        hidden = self._decoder.embed_tokens(tokens)
        cos, sin = (part[0].contiguous() for part in self._decoder.rotary_emb(hidden, positions[None]))
        features = self._tap(len(tokens))
        self._struct.num_threads = torch.get_num_threads()
        space = self._space(len(tokens))
        rows = native_rows(batch)
        self._library.functions.paceline_decoder(
            ctypes.byref(self._struct),
            ctypes.byref(rows.struct),
            pointer(cos),
            pointer(sin),
            pointer(hidden),
            ctypes.byref(SpaceStruct(*map(pointer, space))),
        )
        if "final" in self._taps:
            features["final"] = self._norm(hidden)
            return self._head(features["final"][logit_rows]), features
        return self._head(self._norm(hidden[logit_rows])), features

    def _tap(self, num_rows: int) -> dict[int | str, torch.Tensor]:
        """Room for the features, and where the layers find it."""
        features: dict[int | str, torch.Tensor] = {}
        for tap in self._taps:
            if isinstance(tap, int):
                features[tap] = torch.empty(num_rows, self._hidden)
                self._layers[tap].tap = pointer(features[tap])
        return features

    def _space(self, num_rows: int) -> tuple[torch.Tensor, ...]:
        widths = (self._hidden, self._columns[0], self._heads * self._head_size, self._columns[1])
        return tuple(torch.empty(num_rows, width) for width in widths)

    def _norm(self, hidden: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(hidden)
        weight = self._decoder.norm.weight
        tensors = map(pointer, (hidden, weight))
        self._library.functions.paceline_rms_norm(ctypes.byref(self._struct), *tensors, hidden.shape[0], pointer(out))
        return out


def _padded(columns: int) -> int:
    return -(-columns // PANEL) * PANEL


def _layer(layer: nn.Module, cache: tuple[torch.Tensor, torch.Tensor], window: int | None) -> LayerStruct:
    attention, mlp = layer.self_attn, layer.mlp
    q_norm, k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    products = (attention.q_proj, attention.o_proj, mlp.gate_proj, mlp.down_proj)
    norms = (layer.input_layernorm, q_norm, k_norm, layer.post_attention_layernorm)
    return LayerStruct(
        *(None if norm is None else pointer(norm.weight) for norm in norms),
        *(pointer(product.packed) for product in products),
        *(pointer(product.padded_scale) for product in products),
        *(pointer(product.padded_bias) for product in products),
        *map(pointer, cache),
        None,
        window or 0,
    )
