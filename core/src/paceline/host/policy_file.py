"""Reading ``paceline-plugins.toml``: which plugins may run. ``docs/pinning_plugins.md`` is the guide."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.api.errors import did_you_mean
from paceline.host.errors import PolicyFileError
from paceline.host.lock_file import LOCK_NAME, Lock, read_lock
from paceline.host.names import canonical_name

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

__all__ = ["CORE", "POLICY_NAME", "POLICY_VARIABLE", "PluginPolicy", "Rule", "policy_in_force"]

POLICY_NAME = "paceline-plugins.toml"
POLICY_VARIABLE = "PACELINE_PLUGIN_POLICY"
CORE = "paceline-core"

_MODES = ("open", "allow", "locked")
_KEYS = ("mode", "allow", "deny", "hashes")
_RULE = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*([^A-Za-z0-9\s].*)?")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of ``allow`` or ``deny``.

    Attributes:
        place: Where it stands, such as ``paceline-plugins.toml: allow[0]``.
        text: As it is written.
        distribution: Canonical name.
        versions: The range; every version if it is empty.
    """

    place: str
    text: str
    distribution: str
    versions: SpecifierSet

    def __str__(self) -> str:
        return f'{self.place} = "{self.text}"'

    def allows(self, version: str) -> bool:
        """Whether the range holds ``version``: a pre-release only if it names one, what is no version never."""
        return self._covers(version, otherwise=False, prereleases=bool(self.versions.prereleases))

    def denies(self, version: str) -> bool:
        """Whether the range holds ``version``: pre-releases too, and what is no version always."""
        return self._covers(version, otherwise=True, prereleases=True)

    def _covers(self, version: str, otherwise: bool, prereleases: bool) -> bool:
        from packaging.version import InvalidVersion, Version

        if not str(self.versions):
            return True
        try:
            return self.versions.contains(Version(version), prereleases=prereleases)
        except InvalidVersion:
            return otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginPolicy:
    """What is in force.

    Attributes:
        mode: ``open`` (all but what is denied), ``allow`` (what is listed) or ``locked`` (what the lock has).
        allow: The list, ``None`` where the file has none.
        deny: What may not run, in every mode.
        hashes: Canonical distribution name -> the hashes of which its files must have one, in every mode.
        file: The policy file, ``None`` if there is none.
        lock: The lock, where there is one.
    """

    mode: str = "open"
    allow: tuple[Rule, ...] | None = None
    deny: tuple[Rule, ...] = ()
    hashes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    file: Path | None = None
    lock: Lock | None = None

    def __str__(self) -> str:
        if self.file is None:
            return f"open (no {POLICY_NAME})"
        return f"{self.mode} ({self.file}{f', {self.lock.file}' if self.mode == 'locked' and self.lock else ''})"

    @property
    def lock_path(self) -> Path:
        """Where the lock lies: beside the policy, in the working directory without one."""
        return Path(LOCK_NAME) if self.file is None else self.file.with_name(LOCK_NAME)

    @property
    def required_lock(self) -> Lock:
        """The lock that mode ``locked`` cannot do without.

        Raises:
            PolicyFileError: if it was not read.
        """
        if self.lock is None:
            raise PolicyFileError(f'mode is "locked", and the lock {self.lock_path} has not been read; give one')
        return self.lock

    @property
    def mode_rule(self) -> str:
        """The rule that is left when no list says anything."""
        return f'{self.file}: mode = "{self.mode}"' if self.file else f'no {POLICY_NAME}, so that mode is "open"'


def policy_in_force(named: str | None = None, *, with_lock: bool = True) -> PluginPolicy:
    """Find and read the policy.

    Args:
        named: The file named on the command line or by ``LLM(plugin_policy=)``. Without one it is the one that
            ``PACELINE_PLUGIN_POLICY`` names, else ``paceline-plugins.toml`` in the working directory, else none.
        with_lock: Whether to read the lock in mode ``locked``; not for who is about to write it.

    Raises:
        PolicyFileError: naming file, key, value and bound.
    """
    path = _path(named)
    if path is None:
        return PluginPolicy()
    policy = _policy_of(path, _parse(path))
    if policy.mode != "locked" or not with_lock:
        return policy
    return replace(policy, lock=read_lock(policy.lock_path))


def _path(named: str | None) -> Path | None:
    if named is not None:
        return Path(named)
    variable = os.environ.get(POLICY_VARIABLE)
    if variable:
        return Path(variable)
    return Path(POLICY_NAME) if os.path.lexists(POLICY_NAME) else None


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyFileError(f"plugin policy {file} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise PolicyFileError(f"plugin policy {file} is not TOML that can be read: {error}") from error


def _policy_of(file: Path, data: Mapping[str, Any]) -> PluginPolicy:
    for key, value in data.items():
        if key not in _KEYS:
            raise PolicyFileError(f'{file}: unknown key "{key}" = {value!r:.80}{did_you_mean(key, _KEYS)}')
    mode = data.get("mode")
    if mode not in _MODES:
        raise PolicyFileError(f"{file}: mode = {mode!r} is none of {', '.join(_MODES)}; give one")
    if mode == "open" and "allow" in data:
        raise PolicyFileError(f'{file}: allow means nothing in mode "open"; give mode = "allow", or leave it out')
    return PluginPolicy(
        mode=mode,
        allow=_rules(file, "allow", data["allow"]) if "allow" in data else None,
        deny=_rules(file, "deny", data.get("deny", [])),
        hashes=_hashes(file, data.get("hashes", {})),
        file=file,
    )


def _rules(file: Path, key: str, entries: object) -> tuple[Rule, ...]:
    if not isinstance(entries, list):
        raise PolicyFileError(f'{file}: {key} = {entries!r:.80} is not a list such as ["paceline-ngram>=0.1,<1"]')
    rules = [_rule(f"{file}: {key}[{index}]", entry) for index, entry in enumerate(entries)]
    _refuse_repeats([rule.distribution for rule in rules], f"{file}: {key}")
    return tuple(rules)


def _rule(place: str, entry: object) -> Rule:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # a listing without a policy does without

    match = _RULE.fullmatch(entry) if isinstance(entry, str) else None
    try:
        versions = SpecifierSet((match and match[2]) or "")
    except InvalidSpecifier:
        match = None
    if match is None:
        raise PolicyFileError(
            f'{place} = {entry!r:.80} is not a distribution and a range of versions such as "paceline-ngram>=0.1,<1"'
        )
    return Rule(place, match[0].strip(), _not_the_core(place, match[1]), versions)


def _not_the_core(place: str, name: str) -> str:
    distribution = canonical_name(name)
    if distribution == CORE:
        raise PolicyFileError(
            f"{place}: {CORE} is the core itself, whose own plugins may run wherever it runs; leave it out, and pin "
            "its version where you install it"
        )
    return distribution


def _refuse_repeats(names: Sequence[str], place: str) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise PolicyFileError(f"{place} names {repeated} twice; give it once, with the whole range")


def _hashes(file: Path, table: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(table, dict):
        raise PolicyFileError(f'{file}: hashes = {table!r:.80} is not a table of distribution = "sha256:..."')
    rows = [
        (_not_the_core(f"{file}: hashes", name), tuple(_hash_texts(file, name, own))) for name, own in table.items()
    ]
    _refuse_repeats([name for name, _ in rows], f"{file}: hashes")
    return dict(rows)


def _hash_texts(file: Path, name: str, own: object) -> Iterator[str]:
    for text in own if isinstance(own, list) and own else [own]:
        if not (isinstance(text, str) and _HASH.fullmatch(text)):
            raise PolicyFileError(
                f'{file}: hashes.{name} = {text!r:.80} is not of the form "sha256:" and 64 hexadecimal digits; '
                "`paceline plugins lock` writes them"
            )
        yield text
