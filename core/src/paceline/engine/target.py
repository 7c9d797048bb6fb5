"""The target: loading it, what plugins know of it, and its texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.api import TargetFacts
from paceline.config import EngineConfig
from paceline.engine.errors import EngineError
from paceline.model.architecture import max_positions, text_config
from paceline.model.loading import LoadedModel, load_model

__all__ = ["decoder", "encoder", "load_beside", "load_target", "target_facts"]

_DEFAULT_MAX_MODEL_LEN = 8192


def load_target(config: EngineConfig) -> LoadedModel:
    return load_model(
        config.model,
        dtype=config.dtype,
        device=config.device,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
        numerics=config.numerics,
        tokenizer=config.tokenizer,
        max_model_len=config.max_model_len,
        quantization=config.quantization,
    )


def load_beside(target: LoadedModel, name: str, trust_remote_code: bool, max_model_len: int) -> LoadedModel:
    """Another model where the target is, in its dtype and numerics, for sequences of the same length."""
    return load_model(
        name,
        dtype=str(target.dtype).removeprefix("torch."),
        device=str(target.device),
        trust_remote_code=trust_remote_code,
        numerics=target.numerics,
        max_model_len=max_model_len,
    )


def target_facts(config: EngineConfig, loaded: LoadedModel) -> TargetFacts:
    text = text_config(loaded.config)
    return TargetFacts(
        config=text.to_dict(),
        vocab_size=loaded.num_token_ids,
        hidden_size=text.hidden_size,
        num_layers=text.num_hidden_layers,
        max_model_len=_max_model_len(config, loaded),
        max_num_seqs=config.max_num_seqs,
        block_size=config.block_size,
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=str(loaded.device),
        numerics=config.numerics,
        tokenizer_fingerprint=loaded.tokenizer_fingerprint,
        weights_fingerprint=loaded.weights_fingerprint,
    )


def _max_model_len(config: EngineConfig, loaded: LoadedModel) -> int:
    longest = max_positions(loaded.config)
    if config.max_model_len is None:
        return longest or _DEFAULT_MAX_MODEL_LEN
    if longest is not None and config.max_model_len > longest:
        raise EngineError(
            f'max_model_len is {config.max_model_len}, and "{loaded.name}" was made for {longest} positions; '
            f"use at most {longest}"
        )
    return config.max_model_len


def encoder(loaded: LoadedModel) -> Callable[[str], list[int]] | None:
    """Text to tokens, without special tokens."""
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        return None
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def decoder(loaded: LoadedModel) -> Callable[[Sequence[int], bool], str] | None:
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        return None
    return lambda token_ids, skips: tokenizer.decode(token_ids, skip_special_tokens=skips)
