"""SmolLM2-135M-Instruct on the paged core: the tokens of transformers, with and without speculation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_real_text_is_lossless(tmp_path: Path) -> None:
    record = tmp_path / "agreement.json"
    command = [sys.executable, "-m", "paceline.cli", "bench", "agreement", "--numerics", "exact", "--ignore-eos"]
    command += ["--proposer", "ngram", "--proposer", "draft_model model=target num_speculative_tokens=3"]
    command += ["--num-prompts", "4", "--max-tokens", "32", "--output", str(record)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(record.read_text())
    assert result["is_lossless"]
    assert len(result["pairs"]) == 7
    for pair in result["pairs"]:
        assert pair["num_same"] == pair["num_outputs"] == 4, pair
