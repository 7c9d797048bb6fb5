"""Loading a causal LM with transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from paceline.api.errors import did_you_mean
from paceline.model import bridge
from paceline.model.architecture import (
    causal_lm_class,
    drop_unused_window,
    max_positions,
    refuse_unsupported_class,
    refuse_unsupported_config,
    text_config,
)
from paceline.model.checkpoint import DEMO_NAME, demo_gguf, find_checkpoint, require_gguf_packages
from paceline.model.demo import converted
from paceline.model.device import resolve_device, resolve_dtype
from paceline.model.errors import CheckpointError, UnsupportedModelError
from paceline.model.exact import make_exact, refuse_inexact_host
from paceline.model.fingerprint import tokenizer_fingerprint, weights_fingerprint
from paceline.model.load_faults import load_faults, quiet
from paceline.model.packing import QUANTIZATIONS, pack_linears
from paceline.model.plain_decoder import is_plain
from paceline.model.quantization import (
    quantization_faults,
    quantization_method,
    refuse_inexact_weights,
    refuse_leftovers,
    refuse_unknown_method,
)
from paceline.model.rope import fix_rope
from paceline.native.build import cache_folder
from paceline.native.library import NativeLibrary, native_library

__all__ = ["LoadedModel", "load_model"]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(slots=True)
class LoadedModel:
    """A causal LM ready for the paged runner.

    Attributes:
        model: In eval mode on its device; its attention is the bridge's.
        config: Its configuration.
        tokenizer: Its tokenizer, or ``None`` when the checkpoint brings none.
        generation_config: The checkpoint's defaults for sampling.
        weights_fingerprint: SHA-256 (hex) of the weights' content.
        tokenizer_fingerprint: SHA-256 (hex) of the tokenizer's content; ``""`` without one.
        eos_token_ids: The ids that end a text, ascending.
        name: What the user asked for.
        dtype: Of the weights.
        device: Of the weights.
        numerics: ``"fast"`` or ``"exact"``.
        checkpoint: The directory or GGUF file that it was read from.
        native: The kernels that its linear layers are packed for, or ``None``.
        is_plain: Whether the kernels run all of its layers in one call.
        layer_ids: The layers that it has of another model; ``None`` = it is a whole one.
    """

    model: PreTrainedModel
    config: PretrainedConfig
    tokenizer: Any | None
    generation_config: GenerationConfig
    weights_fingerprint: str
    tokenizer_fingerprint: str
    eos_token_ids: tuple[int, ...]
    name: str
    dtype: torch.dtype
    device: torch.device
    numerics: str
    checkpoint: Path
    native: NativeLibrary | None
    is_plain: bool
    layer_ids: tuple[int, ...] | None = None

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return text_config(self.config).vocab_size

    @property
    def num_token_ids(self) -> int:
        """Ids that may be emitted: rows of the logits beyond the tokenizer's vocabulary are padding."""
        return self.vocab_size if self.tokenizer is None else min(self.vocab_size, len(self.tokenizer))


def load_model(
    name_or_path: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    numerics: str = "fast",
    tokenizer: str | None = None,
    max_model_len: int | None = None,
    quantization: str | None = None,
    packs: bool = True,
) -> LoadedModel:
    """Load a causal LM, its tokenizer and its generation defaults.

    Args:
        name_or_path: A directory, a ``.gguf`` file, a hub id, or ``"demo"``.
        dtype: ``"auto"`` = float32 on CPU, the checkpoint's elsewhere; or the name of a floating dtype.
        device: ``"auto"`` = CUDA if there is one, else the CPU; or a device string.
        revision: Branch, tag or commit of a hub repository.
        trust_remote_code: Whether code that the checkpoint brings may run.
        numerics: ``"exact"`` makes every row independent of the batch, bit for bit.
        tokenizer: Directory or hub id of the tokenizer, if it is not the model's.
        max_model_len: Longest sequence to be served, in tokens, for which dynamic NTK and LongRoPE are fixed; ``None``
            = the longest that the model was made for.
        quantization: ``"int8"`` or ``"int4"`` rounds the weights of linear layers to so many bits; ``None`` = as the
            checkpoint has them.
        packs: Whether linear layers are packed for the native kernels, where these serve the model; ``False`` leaves
            the model as transformers runs it.

    Raises:
        PacelineError: one of ``paceline.model.errors``, or ``NumericsError`` where exact numerics cannot hold.
    """
    _refuse_unknown_quantization(quantization)
    on = resolve_device(device)
    if numerics == "exact":
        refuse_inexact_host(on, dtype)
    checkpoint = _checkpoint(name_or_path, revision, trust_remote_code)
    config = _load_config(checkpoint, name_or_path, trust_remote_code)
    if numerics == "exact":
        refuse_inexact_weights(config, name_or_path)
    model = _load_weights(checkpoint, config, name_or_path, resolve_dtype(dtype, on), on, trust_remote_code)
    _fix_rope(model, max_model_len)
    drop_unused_window(model)
    tokenizer_path = checkpoint if tokenizer is None else _tokenizer_checkpoint(tokenizer, revision)
    read_tokenizer = _load_tokenizer(tokenizer_path, trust_remote_code)
    return _describe(model, read_tokenizer, name_or_path, numerics, checkpoint, quantization, packs)


def _refuse_unknown_quantization(quantization: str | None) -> None:
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise UnsupportedModelError(
            f'quantization "{quantization}" is unknown{did_you_mean(quantization, QUANTIZATIONS)}'
        )


def _checkpoint(name_or_path: str, revision: str | None, trust_remote_code: bool) -> Path:
    if name_or_path == DEMO_NAME:
        return converted(demo_gguf(), _convert_gguf, cache_folder())
    return find_checkpoint(name_or_path, revision=revision, trust_remote_code=trust_remote_code)


def _convert_gguf(gguf: Path, directory: Path) -> None:
    """Write a GGUF model as float32 safetensors, with tokenizer and generation defaults."""
    config = _load_config(gguf, str(gguf), False)
    model = _load_weights(gguf, config, str(gguf), torch.float32, torch.device("cpu"), False)
    with quiet():
        model.save_pretrained(directory)
        _read_tokenizer(gguf, False).save_pretrained(directory)


def _load_config(checkpoint: Path, name: str, trust_remote_code: bool) -> PretrainedConfig:
    with load_faults(name):
        config = AutoConfig.from_pretrained(**_source(checkpoint), trust_remote_code=trust_remote_code)
    refuse_unsupported_config(config, name)
    refuse_unknown_method(config, name)
    model_class = causal_lm_class(config)
    if model_class is not None:
        refuse_unsupported_class(model_class, config, name)
    return config


def _fix_rope(model: PreTrainedModel, max_model_len: int | None) -> None:
    longest = max_positions(model.config)
    if longest is not None:
        fix_rope(model, text_config(model.config), min(max_model_len or longest, longest))


def _load_weights(
    checkpoint: Path,
    config: PretrainedConfig,
    name: str,
    dtype: torch.dtype | str,
    device: torch.device,
    trust_remote_code: bool,
) -> PreTrainedModel:
    bridge.register()
    extra: dict[str, Any] = {"quantization_config": GgufConfig(dequantize=True)} if checkpoint.is_file() else {}
    method = quantization_method(config)
    if method is not None:
        extra["device_map"] = {"": str(device)}
    with quantization_faults(name, method, device), load_faults(name), quiet():
        model, report = AutoModelForCausalLM.from_pretrained(
            **_source(checkpoint),
            config=config,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            attn_implementation=bridge.ATTENTION_NAME,
            output_loading_info=True,
            **extra,
        )
    _refuse_incomplete(name, report)
    refuse_leftovers(name, method, report["unexpected_keys"])
    refuse_unsupported_class(type(model), model.config, name)
    return model.eval() if method is not None else model.to(device).eval()


def _refuse_incomplete(name: str, report: dict[str, Any]) -> None:
    """transformers fills what a checkpoint lacks with random numbers; that is not the user's model."""
    lacking = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if lacking:
        raise CheckpointError(
            f'"{name}" lacks {len(lacking)} of the tensors that its configuration asks for, such as {lacking[0]}; '
            "fetch the checkpoint again"
        )


def _tokenizer_checkpoint(name: str, revision: str | None) -> Path:
    path = Path(name).expanduser()
    return path if path.is_dir() else find_checkpoint(name, revision=revision, trust_remote_code=False)


def _load_tokenizer(checkpoint: Path, trust_remote_code: bool) -> Any | None:
    if checkpoint.is_dir() and not any((checkpoint / file).exists() for file in _TOKENIZER_FILES):
        return None
    return _read_tokenizer(checkpoint, trust_remote_code)


def _read_tokenizer(checkpoint: Path, trust_remote_code: bool) -> Any:
    with load_faults(str(checkpoint)):
        return AutoTokenizer.from_pretrained(**_source(checkpoint), trust_remote_code=trust_remote_code)


def _source(checkpoint: Path) -> dict[str, str]:
    if checkpoint.is_dir():
        return {"pretrained_model_name_or_path": str(checkpoint)}
    require_gguf_packages(checkpoint)
    return {"pretrained_model_name_or_path": str(checkpoint.parent), "gguf_file": checkpoint.name}


def _describe(
    model: PreTrainedModel,
    tokenizer: Any | None,
    name: str,
    numerics: str,
    checkpoint: Path,
    quantization: str | None,
    packs: bool,
) -> LoadedModel:
    fingerprint = weights_fingerprint(model, None if quantization is None else QUANTIZATIONS[quantization])
    native = _pack(model, name, quantization) if packs else None
    if numerics == "exact":
        make_exact(model)
    return LoadedModel(
        model=model,
        config=model.config,
        tokenizer=tokenizer,
        generation_config=model.generation_config,
        weights_fingerprint=fingerprint,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        eos_token_ids=_eos_token_ids(model, tokenizer),
        name=name,
        dtype=model.dtype,
        device=model.device,
        numerics=numerics,
        checkpoint=checkpoint,
        native=native,
        is_plain=native is not None and is_plain(model, native),
    )


def _pack(model: PreTrainedModel, name: str, quantization: str | None) -> NativeLibrary | None:
    """Pack the linear layers for the native kernels, where these are.

    Raises:
        UnsupportedModelError: if they are to be quantised and the kernels do not serve the model.
    """
    serves = model.device.type == "cpu" and model.dtype == torch.float32
    library = native_library() if serves else None
    if library is not None:
        pack_linears(model, library, quantization)
    elif quantization is not None:
        raise UnsupportedModelError(
            f'"{name}" cannot be run with quantization="{quantization}" in {model.dtype} on {model.device}: the native '
            'kernels do that, in float32 on the CPU; use device="cpu" and dtype="float32", and a C++ compiler'
        )
    return library


def _eos_token_ids(model: PreTrainedModel, tokenizer: Any | None) -> tuple[int, ...]:
    """From the generation defaults; where those are silent from the configuration, then from the tokenizer."""
    for source in (model.generation_config, text_config(model.config), tokenizer):
        found = getattr(source, "eos_token_id", None)
        if found is not None:
            return (found,) if isinstance(found, int) else tuple(sorted(set(found)))
    return ()
