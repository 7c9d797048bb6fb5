"""Write the snapshot of ``paceline.api`` anew; refused where ``API_VERSION`` does not cover what changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from api_surface import API, SNAPSHOT, as_text, read_sources, surface
from api_versions import uncovered


def refresh(snapshot: Path, api: Path) -> str:
    """Write ``snapshot`` from the sources in ``api``; a refusal is left in the answer, with nothing written."""
    present = surface(read_sources(api))
    refusal = uncovered(json.loads(snapshot.read_text(encoding="utf-8")), present)
    if not refusal:
        snapshot.write_text(as_text(present), encoding="utf-8")
    return refusal


if __name__ == "__main__":
    sys.exit(refresh(SNAPSHOT, API) or None)
