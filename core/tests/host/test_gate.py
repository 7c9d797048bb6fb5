"""Each refusal of the policy: its code, its message, its remedy; and no code of the plugin has run by then."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.host.discovery import discover
from paceline.host.errors import (
    PluginApiError,
    PluginChangedError,
    PluginClaimError,
    PluginConflictError,
    PluginDeniedError,
    PluginEditableError,
    PluginHashError,
    PluginMissingError,
    PluginNotAllowedError,
    PluginNotFoundError,
    PluginNotLockedError,
    PluginRecordError,
    PluginRefusedError,
    PluginVersionError,
    PolicyFileError,
)
from paceline.host.gate import admit
from paceline.host.integrity import checked_digest
from paceline.host.loading import load, load_one
from paceline.host.locking import lock_plugins
from paceline.host.policy_file import PluginPolicy, policy_in_force
from paceline.host.selection import Selection

MARKER = "from pathlib import Path\nPath({!r}).touch()\n"


@pytest.fixture
def marker(tmp_path):
    """A file that the plugin's module writes when it is imported."""
    return tmp_path / "imported"


def install(site, marker, version="1.0", distribution="paceline-ngram"):
    """A proposer ``ngram`` whose import leaves a file."""
    source = "@hookimpl\ndef paceline_proposers():\n    return [spec()]\n" + MARKER.format(str(marker))
    return site.proposer("ngram", source, version=version, distribution=distribution)


def start(site, policy, name="ngram"):
    return load([Selection("proposer", name)], search_path=site.path, policy=policy).one("proposer")


def refused(site, marker, policy, error_class, name="ngram"):
    """The message with which a start is refused, none of the plugin's code having run."""
    marker.unlink(missing_ok=True)
    before = set(sys.modules)
    with pytest.raises(error_class) as error:
        start(site, policy, name)
    assert not marker.exists()
    assert not (set(sys.modules) - before) & site.modules
    assert str(error.value).startswith(f"{error_class.code}: ")
    return str(error.value)


def uninstall(info: Path) -> None:
    """Take the metadata away, so that another release can be installed."""
    for file in info.iterdir():
        file.unlink()
    info.rmdir()


def test_codes_are_stable_and_of_one_class_each():
    codes = {error.code: error for error in PluginRefusedError.__subclasses__()}

    assert sorted(codes) == [f"PACELINE-E{number}" for number in range(211, 222)]


def test_open_lets_everything_run_but_what_is_denied(site, marker, policy):
    install(site, marker)

    assert start(site, policy('mode = "open"\n')).name == "ngram"
    assert marker.exists()


@pytest.mark.parametrize("mode", ["open", "allow"])
@pytest.mark.parametrize(
    ("rule", "version", "denied"),
    [
        ("Paceline.NGram", "1.0", True),
        ("paceline-ngram<1", "0.9", True),
        ("paceline-ngram<1", "0.9rc1", True),
        ("paceline-ngram<1", "1.0", False),
        ("paceline-ngram<1", "unknown", True),
        ("paceline", "1.0", False),
    ],
)
def test_deny_wins_in_every_mode(site, marker, policy, mode, rule, version, denied):
    install(site, marker, version)
    allow = 'allow = ["paceline-ngram"]\n' if mode == "allow" else ""
    rules = policy(f'mode = "{mode}"\n{allow}deny = ["{rule}"]\n')

    if denied:
        text = refused(site, marker, rules, PluginDeniedError)
        assert f'is refused: paceline-plugins.toml: deny[0] = "{rule}"; take it out of the configuration, or' in text
    else:
        assert start(site, rules).version == version


@pytest.mark.parametrize(
    ("allow", "version", "reason"),
    [
        (["paceline-ngram>=0.1,<1"], "0.4", ""),
        (["PACELINE_ngram"], "0.4", ""),
        (["paceline-ngram>=0.1,<1"], "1.0", 'allow[0] = "paceline-ngram>=0.1,<1" leaves out version 1.0'),
        (["paceline-ngram>=0.1,<1"], "0.4rc1", "leaves out version 0.4rc1"),
        (["paceline-ngram>=0.1rc1,<1"], "0.4rc1", ""),
        (["paceline-ngram>=0.1"], "unknown", "leaves out version unknown"),
        (["paceline-ngram"], "unknown", ""),
        (["ngram", "paceline"], "1.0", "paceline-plugins.toml: allow does not name paceline-ngram"),
        ([], "1.0", "allow does not name paceline-ngram"),
        (None, "1.0", 'paceline-plugins.toml: mode = "allow", and there is no list allow'),
    ],
)
def test_allow_lets_run_what_it_lists_by_distribution_and_version(site, marker, policy, allow, version, reason):
    install(site, marker, version)
    listed = "" if allow is None else f"allow = {allow!r}\n"
    rules = policy(f'mode = "allow"\n{listed}')

    if reason:
        text = refused(site, marker, rules, PluginNotAllowedError)
        assert reason in text
        assert f'to let it run, write "paceline-ngram=={version}" in allow of paceline-plugins.toml' in text
    else:
        assert start(site, rules).version == version


def test_a_package_that_only_calls_its_plugin_like_an_allowed_one_may_not_run(site, marker, policy):
    install(site, marker, distribution="evil-drafts")

    refused(site, marker, policy('mode = "allow"\nallow = ["paceline-ngram", "ngram"]\n'), PluginNotAllowedError)


def test_no_plugin_is_imported_when_another_one_is_refused(site, marker, policy):
    install(site, marker)
    site.proposer("other")
    rules = policy('mode = "allow"\nallow = ["paceline-ngram"]\n')
    with pytest.raises(PluginNotAllowedError, match="paceline-other"):
        load([Selection("proposer", "ngram"), Selection("proposer", "other")], search_path=site.path, policy=rules)

    assert not marker.exists()


def test_a_command_of_a_plugin_is_under_the_policy_too(site, marker, policy):
    install(site, marker)
    policy('mode = "allow"\n')
    with pytest.raises(PluginNotAllowedError):
        load_one(Selection("command", "ngram:train"), lambda spec: {})

    assert not marker.exists()


@pytest.mark.parametrize("mode", ["open", "allow"])
def test_a_required_hash_holds_in_every_mode(site, marker, policy, mode):
    install(site, marker)
    allow = 'allow = ["paceline-ngram"]\n' if mode == "allow" else ""
    right = checked_digest(discover(site.path)[0])
    text = f'mode = "{mode}"\n{allow}[hashes]\npaceline-ngram = ["sha256:{"0" * 64}", "{right}"]\n'

    assert start(site, policy(text)).name == "ngram"
    message = refused(site, marker, policy(text.replace(right, f"sha256:{'1' * 64}")), PluginHashError)
    assert f"hashes.paceline-ngram = sha256:{'0' * 64} or sha256:{'1' * 64}, and its files have {right}" in message
    assert "install the release that was meant, or write this hash in paceline-plugins.toml" in message


def test_locked_without_a_lock_lets_nothing_run(site, marker, policy):
    install(site, marker)

    text = refused(site, marker, PluginPolicy(mode="locked"), PolicyFileError)
    assert 'mode is "locked", and the lock paceline.lock has not been read; give one' in text
    with pytest.raises(PolicyFileError, match="is missing"):
        policy('mode = "locked"\n')


def test_locked_lets_run_what_was_locked(site, marker, lock):
    install(site, marker)

    loaded = start(site, lock("ngram"))
    assert (loaded.name, loaded.version) == ("ngram", "1.0")
    assert marker.exists()


def test_locked_without_an_entry(site, marker, lock):
    install(site, marker)
    site.proposer("other")

    text = refused(site, marker, lock("other"), PluginNotLockedError)
    assert "is refused: paceline.lock does not have it; lock it with `paceline plugins lock`" in text


def test_locked_with_a_changed_file(site, marker, lock):
    install(site, marker)
    rules = lock("ngram")
    with open(site.folder / "mod_paceline_ngram.py", "a") as file:
        file.write("# one more\n")

    text = refused(site, marker, rules, PluginChangedError)
    assert f"paceline.lock has {rules.lock.plugins[0].hash}, and its files have sha256:" in text
    assert "reinstall what was locked with: pip install --force-reinstall paceline-ngram==1.0" in text


def test_locked_with_another_version(site, marker, lock):
    info = install(site, marker)
    rules = lock("ngram")
    uninstall(info)
    install(site, marker, version="1.1")

    text = refused(site, marker, rules, PluginVersionError)
    assert "paceline.lock has version 1.0, installed is 1.1; install it with: pip install paceline-ngram==1.0" in text


@pytest.mark.parametrize("is_gone", [True, False])
@pytest.mark.parametrize("name", ["ngram", "evil-drafts/ngram"])
def test_locked_with_another_distribution_that_claims_the_name(site, marker, lock, is_gone, name):
    info = install(site, marker)
    rules = lock("ngram")
    if is_gone:
        uninstall(info)
    install(site, marker, distribution="evil-drafts")

    text = refused(site, marker, rules, PluginClaimError, name)
    assert "gives this name to distribution paceline-ngram, and evil-drafts claims it too" in text
    assert 'remove evil-drafts, or configure the one you mean, such as "paceline-ngram/ngram"' in text
    if not is_gone:
        assert start(site, rules, "paceline-ngram/ngram").distribution == "paceline-ngram"


def test_locked_and_not_installed(site, marker, lock):
    info = install(site, marker)
    rules = lock("ngram")
    uninstall(info)

    text = refused(site, marker, rules, PluginMissingError)
    assert 'plugin "ngram" 1.0 (distribution paceline-ngram) is refused: paceline.lock has it, and it is not' in text
    assert "install it with: pip install paceline-ngram==1.0" in text
    refused(site, marker, rules, PluginNotFoundError, "gone")


def test_locked_with_another_entry_point(site, marker, lock):
    info = install(site, marker)
    rules = lock("ngram")
    (info / "entry_points.txt").write_text("[paceline.plugins]\nngram = mod_paceline_ngram:other\n")

    text = refused(site, marker, rules, PluginChangedError)
    assert 'has the entry point "ngram = mod_paceline_ngram" in group paceline.plugins' in text


@pytest.mark.parametrize("accepted", [(">=9",), ("garbage",), ()])
def test_locked_for_another_api_is_refused_before_it_is_imported(site, marker, lock, accepted):
    install(site, marker)
    rules = lock("ngram")
    entry = replace(rules.lock.plugins[0], requires_api=accepted)

    text = refused(site, marker, replace(rules, lock=replace(rules.lock, plugins=(entry,))), PluginApiError)
    assert "0.1" in text


@pytest.mark.parametrize(
    ("what", "value"), [("requires_api", (">=0.1",)), ("kinds", ("observer",)), ("needs", ("tree",))]
)
def test_locked_with_other_capabilities_than_it_declares(site, marker, lock, what, value):
    install(site, marker)
    rules = lock("ngram")
    entry = replace(rules.lock.plugins[0], **{what: value})
    with pytest.raises(PluginChangedError, match=f"it declares {what} = .*, and was locked with .*lock it again"):
        start(site, replace(rules, lock=replace(rules.lock, plugins=(entry,))))


@pytest.mark.parametrize("record", ['{"url": "file:///x", "dir_info": {"editable": true}}', "[", '{"dir_info": 3}'])
def test_editable_installs_have_no_place_under_a_lock(site, marker, lock, policy, record):
    info = install(site, marker)
    rules = lock("ngram")
    (info / "direct_url.json").write_text(record)

    text = refused(site, marker, rules, PluginEditableError)
    assert 'it is an editable install, whose files may change at any time; install it without "-e"' in text
    with pytest.raises(PluginEditableError):
        lock_plugins(discover(site.path), ["ngram"], PluginPolicy())
    assert start(site, policy('mode = "allow"\nallow = ["paceline-ngram"]\n')).name == "ngram"


def test_an_install_from_a_local_folder_is_not_editable(site, marker, lock):
    info = install(site, marker)
    (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {}}')

    assert start(site, lock("ngram")).name == "ngram"


@pytest.mark.parametrize("content", [None, b"\xff", b"x" * 200_000])
def test_without_a_record_nothing_can_be_checked(site, marker, lock, content):
    info = install(site, marker)
    rules = lock("ngram")
    (info / "RECORD").unlink() if content is None else (info / "RECORD").write_bytes(content)

    text = refused(site, marker, rules, PluginRecordError)
    assert "has no RECORD that can be read, so that its files cannot be checked; install it from a wheel" in text


def test_allow_and_deny_hold_under_a_lock_as_well(site, marker, lock, policy):
    install(site, marker)
    lock("ngram")

    refused(site, marker, policy('mode = "locked"\ndeny = ["paceline-ngram"]\n'), PluginDeniedError)
    refused(site, marker, policy('mode = "locked"\nallow = []\n'), PluginNotAllowedError)
    assert start(site, policy('mode = "locked"\nallow = ["paceline-ngram"]\n'))


@pytest.mark.parametrize("mode", ["open", "allow", "locked"])
def test_the_core_s_own_plugins_run_in_every_mode(lock, policy, work, mode):
    lock()
    rules = policy(f'mode = "{mode}"\n')
    plugin, rule = admit(discover(), "lru", rules)

    assert (plugin.distribution, rule) == (
        "paceline-core",
        "built into paceline-core, whose own plugins may run wherever it runs",
    )
    assert load([Selection("controller", "fixed")], policy=rules).one("controller").name == "fixed"


@pytest.mark.parametrize("mode", ["open", "allow", "locked"])
def test_who_calls_itself_the_core_is_not_the_core(site, marker, lock, policy, mode):
    lock()
    info = install(site, marker, distribution="Paceline_Core")

    text = refused(site, marker, policy(f'mode = "{mode}"\n'), PluginClaimError)
    assert f"it calls itself paceline-core, and its code lies outside of the core; remove {info}" in text


@pytest.mark.parametrize("mode", ["open", "allow", "locked"])
def test_a_built_in_name_is_not_taken_silently(site, marker, lock, policy, mode):
    site.proposer("lru", distribution="evil-cache")
    lock()
    with pytest.raises(PluginConflictError, match=r"distribution evil-cache.*distribution paceline-core"):
        load([Selection("eviction_policy", "lru")], policy=policy(f'mode = "{mode}"\n'))


def test_what_is_in_force_is_found_without_being_given(site, marker, work, monkeypatch):
    install(site, marker)
    (work / "p.toml").write_text('mode = "allow"\n')
    monkeypatch.setenv("PACELINE_PLUGIN_POLICY", "p.toml")

    refused(site, marker, None, PluginNotAllowedError)
    assert os.environ["PACELINE_PLUGIN_POLICY"] == str(policy_in_force().file)


def test_a_lock_of_what_cannot_run_is_not_made(site, marker, lock):
    site.proposer("ngram", "@hookimpl\ndef paceline_proposers():\n    return [spec(requires_api='>=9')]\n")
    with pytest.raises(PluginApiError, match=r'needs paceline.api ">=9", this core has 0\.1'):
        lock("ngram")


def test_the_rest_of_the_policy_is_heeded_before_a_plugin_is_imported_to_be_locked(site, marker, policy):
    install(site, marker)
    rules = policy('mode = "open"\ndeny = ["paceline-ngram"]\n')
    with pytest.raises(PluginDeniedError):
        lock_plugins(discover(site.path), ["ngram"], rules)

    assert not marker.exists()
