"""How ``paceline.yaml`` is laid out: which section holds which field of ``EngineConfig``, and its JSON schema."""

from __future__ import annotations

import difflib
import inspect
import re
from typing import Any

from paceline.config.engine import EngineConfig
from paceline.config.keywords import ROWS, nearest_argument
from paceline.host.policy_file import POLICY_NAME, POLICY_VARIABLE

__all__ = ["DEFAULT_MODEL", "LAYOUT", "json_schema", "misplaced"]

DEFAULT_MODEL = "demo"

# section -> key -> field. Keys are named like the fields, but for two that the section already names. Only the plugin
# policy has no place here: it is a file of its own, which whoever answers for the plugins may keep apart.
LAYOUT: dict[str, dict[str, str]] = {
    "model": {"name": "model"}
    | {name: name for name in ("tokenizer", "revision", "trust_remote_code", "dtype", "quantization")},
    "engine": {
        name: name
        for name in (
            "device",
            "numerics",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "gpu_memory_utilization",
            "enable_chunked_prefill",
            "seed",
        )
    },
    "speculation": {
        "proposer": "proposer",
        "num_speculative_tokens": "num_speculative_tokens",
        "options": "proposer_options",
        "controller": "controller",
        "controller_options": "controller_options",
    },
    "cache": {
        name: name
        for name in (
            "block_size",
            "num_gpu_blocks_override",
            "kv_cache_memory_bytes",
            "enable_prefix_caching",
            "eviction_policy",
            "eviction_policy_options",
        )
    },
    "plugins": {name: name for name in ("cache_identity", "constraints", "observers")},
}
_PATHS = {field: (section, key) for section, keys in LAYOUT.items() for key, field in keys.items()}


def misplaced(section: str, key: str) -> str:
    """What to say of a key that the section does not have: where it belongs, why it has no place, what is near."""
    if key in LAYOUT:
        return f'; "{key}" is a section of its own: write it at the start of a line'
    home = next((path for field, path in _PATHS.items() if key in (field, path[1])), None)
    if home is not None:
        return f"; it belongs under {'.'.join(home)}"
    if key == "plugin_policy":
        return f"; it is given with --plugin-policy or {POLICY_VARIABLE}, or is {POLICY_NAME} in the working directory"
    near = difflib.get_close_matches(key, LAYOUT[section], n=1)
    if near:
        return f'; did you mean "{near[0]}"?'
    if key in ROWS:
        return f"; {ROWS[key].effect}: {ROWS[key].note}"
    return nearest_argument(key)


def json_schema() -> dict[str, Any]:
    """The JSON schema of ``paceline.yaml``, for editors and for checks before deployment."""
    schema = EngineConfig.model_json_schema()
    fields, notes = schema["properties"], _notes()
    fields["model"]["default"] = DEFAULT_MODEL
    for name, field in fields.items():
        field.pop("title")
        field["description"] = notes[name]
    sections: dict[str, Any] = {
        section: {
            "type": "object",
            "additionalProperties": False,
            "properties": {key: fields[field] for key, field in keys.items()},
        }
        for section, keys in LAYOUT.items()
    }
    sections["model"] = {"anyOf": [sections["model"], fields["model"]]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "paceline.yaml",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: {"anyOf": [section, {"type": "null"}]} for name, section in sections.items()},
        "$defs": schema["$defs"],
    }


def _notes() -> dict[str, str]:
    text = inspect.getdoc(EngineConfig) or ""
    return {name: note.replace("``", "`") for name, note in re.findall(r"^    (\w+): (.+)$", text, re.MULTILINE)}
