"""All that a figure depends on besides the code under measurement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from paceline.bench.engines import PacelineEngine
from paceline.bench.lineup import Baseline, Contest
from paceline.engine.llm import LLM

__all__ = ["environment", "load_average"]

_PACKAGES = ("paceline-core", "torch", "transformers", "tokenizers", "safetensors", "numpy", "httpx2")
_VERIFIER = "equality rule: a draft token is accepted where it equals the target's own choice"
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_NUM_THREADS")


def environment(contest: Contest, baseline: Baseline, engines: Sequence[PacelineEngine]) -> dict[str, Any]:
    """Model, engines, versions and hardware, ready for JSON."""
    loaded = baseline.loaded
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {
            "name": loaded.name,
            "revision": engines[0].llm.config.revision,
            "commit": getattr(loaded.config, "_commit_hash", None),
            "architecture": type(loaded.model).__name__,
            "weights_fingerprint": loaded.weights_fingerprint,
            "tokenizer": type(loaded.tokenizer).__name__,
            "tokenizer_fingerprint": loaded.tokenizer_fingerprint,
            "dtype": _dtype_name(loaded.dtype),
            "device": str(loaded.device),
        },
        "transformers": {"attention": baseline.attention, "compiled": False},
        "paceline": {engine.name: _engine_facts(engine.llm, _dtype_name(loaded.dtype)) for engine in engines},
        "verifier": _VERIFIER,
        "numerics": engines[0].llm.config.numerics,
        "ends_at_end_token": not contest.ignore_eos,
        "prefix_sharing": "none between runs: every run has a cache salt of its own",
        "versions": {"python": platform.python_version(), **_package_versions()},
        "hardware": _hardware(loaded.device),
        "threads": {"torch": torch.get_num_threads(), **_thread_variables()},
        "load_average_at_start": load_average(),
    }


def _engine_facts(llm: LLM, kv_dtype: str) -> dict[str, Any]:
    config = llm.config
    return {
        "proposer": config.proposer,
        "num_speculative_tokens": config.num_speculative_tokens,
        "proposer_options": config.proposer_options,
        "plugins": list(llm.plugins),
        "kv": {
            "dtype": kv_dtype,
            "block_size": config.block_size,
            "num_blocks": llm.engine.kv.num_total,
            "enable_prefix_caching": config.enable_prefix_caching,
            "eviction_policy": config.eviction_policy,
        },
        "configuration": config.model_dump(mode="json"),
    }


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _package_versions() -> dict[str, str]:
    installed = {distribution.name.lower() for distribution in importlib.metadata.distributions() if distribution.name}
    return {name: importlib.metadata.version(name) for name in _PACKAGES if name in installed}


def _hardware(device: torch.device) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**3, 1),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _thread_variables() -> dict[str, str]:
    return {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}


def load_average() -> list[float]:
    """Processes that wanted a core over the last 1, 5 and 15 minutes: shows what else the machine did."""
    return [round(value, 2) for value in os.getloadavg()]
