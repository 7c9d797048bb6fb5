"""Changes planted in the sources of the API: each is found, and those whom it breaks are named."""

from __future__ import annotations

from typing import Any

import pytest
from api_changes import changes
from api_surface import read_sources, surface
from planted_changes import CALLS, DATA, NAMES

SOURCES = read_sources()

PLANTED = DATA | CALLS | NAMES


def with_planted(module: str, old: str, new: str) -> dict[str, Any]:
    assert old in SOURCES[module]
    return surface({**SOURCES, module: SOURCES[module].replace(old, new, 1)})


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_change_is_found_with_those_whom_it_breaks(name: str) -> None:
    module, old, new, expected = PLANTED[name]
    found = changes(surface(SOURCES), with_planted(module, old, new))
    assert [str(change) for change in found] == expected


def test_an_added_export_is_compatible() -> None:
    exported = SOURCES["__init__"].replace("import Choose, Drafts", "import Choose, Drafts, Extra")
    exported = exported.replace('    "Drafts",\n', '    "Drafts",\n    "Extra",\n')
    sources = {**SOURCES, "__init__": exported, "drafts": SOURCES["drafts"] + "\n\nclass Extra:\n    pass\n"}
    assert [str(change) for change in changes(surface(SOURCES), surface(sources))] == ["Extra: added (compatible)"]


def test_nothing_changes_by_itself() -> None:
    assert changes(surface(SOURCES), surface(SOURCES)) == []
