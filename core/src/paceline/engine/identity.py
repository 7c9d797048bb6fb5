"""The cache identity of an engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from paceline.api import IdentityContext, TargetFacts
from paceline.host.loading import Loaded
from paceline.kv.identity import CoreIdentity, IdentityBuilder
from paceline.model.loading import LoadedModel

__all__ = ["identity_builder"]

# Everything else of a configuration is taken to shape K and V: a needless miss is better than a wrong hit.
_CONFIG_NOT_IN_KV = ("_name_or_path", "architectures", "transformers_version", "use_cache")


def identity_builder(plugins: Sequence[Loaded], facts: TargetFacts, loaded: LoadedModel) -> IdentityBuilder:
    """The core's fields, from content and configuration alone, and those of the contributors.

    Args:
        plugins: The contributors.
        facts: About the target.
        loaded: The target.
    """
    context = IdentityContext(target=facts)
    contributors = []
    for plugin in plugins:
        plugin.describe(facts)
        contributors.append((plugin.name, plugin.build(context)))
    shaping = {key: value for key, value in facts.config.items() if key not in _CONFIG_NOT_IN_KV}
    return IdentityBuilder(
        CoreIdentity(
            weights_fingerprint=facts.weights_fingerprint,
            tokenizer_fingerprint=facts.tokenizer_fingerprint,
            rope=_as_text({key: value for key, value in shaping.items() if "rope" in key}),
            attention=_as_text({key: value for key, value in shaping.items() if "rope" not in key}),
            kv_dtype=facts.dtype,
            kv_layout="block, offset, head, size",
            block_size=facts.block_size,
            numerics=facts.numerics,
            numerics_facts=_numerics_facts(loaded),
        ),
        contributors,
        {plugin.name: plugin.boundary for plugin in plugins},
    )


def _numerics_facts(loaded: LoadedModel) -> str:
    """What else fixes the bits: exact results hold for one build of torch and one number of threads."""
    threads = f", {torch.get_num_threads()} threads" if loaded.numerics == "exact" else ""
    kernels = f", kernels {loaded.native.digest}" if loaded.native is not None else ""
    return f"torch {torch.__version__} on {loaded.device.type}{threads}{kernels}"


def _as_text(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, default=str)
