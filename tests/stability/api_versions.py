"""Which version of ``paceline.api`` a change asks for; ``docs/api_versions.md`` says why."""

from __future__ import annotations

from collections.abc import Sequence

from api_changes import Change, changes
from api_surface import Surface
from packaging.version import Version

REFRESH = "python tests/stability/refresh.py"


def lowest_version(released: str, found: Sequence[Change]) -> Version:
    """The lowest version that may follow ``released`` with these changes.

    Before 1.0 a breaking change moves the second number and a compatible one the third, from then on the first and
    the second.
    """
    major, minor, micro = Version(released).release + (0,) * (3 - len(Version(released).release))
    if any(change.breaks for change in found):
        return Version(f"{major + 1}.0" if major else f"0.{minor + 1}")
    if found:
        return Version(f"{major}.{minor + 1}" if major else f"0.{minor}.{micro + 1}")
    return Version(released)


def uncovered(snapshot: Surface, present: Surface) -> str:
    """Why the present surface may not be snapshot: which changes its version does not cover; ``""`` when it may."""
    found = changes(snapshot, present)
    released, version = snapshot["api_version"], present["api_version"]
    lowest = lowest_version(released, found)
    if Version(version) >= lowest:
        return ""
    listed = "".join(f"\n  {change}" for change in found)
    return (
        f"paceline.api {version} is not what the snapshot of {released} says:{listed}\n"
        f'set API_VERSION in core/src/paceline/api/version.py to "{lowest}" or above, or take the changes back'
    )


def outdated(snapshot: Surface, present: Surface) -> str:
    """What is to be done before the snapshot is what the sources say; ``""`` when it is."""
    if snapshot == present:
        return ""
    listed = "".join(f"\n  {change}" for change in changes(snapshot, present))
    return uncovered(snapshot, present) or (
        f"the snapshot is of paceline.api {snapshot['api_version']}, the sources have {present['api_version']}:{listed}"
        f"\nwrite it anew with: {REFRESH}"
    )
