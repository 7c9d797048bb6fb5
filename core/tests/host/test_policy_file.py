from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.host.errors import PolicyFileError
from paceline.host.lock_file import LockedPlugin, lock_text, read_lock
from paceline.host.names import canonical_name
from paceline.host.policy_file import policy_in_force

HASH = "sha256:" + "0" * 64
LOCKED = LockedPlugin(
    name="ngram",
    distribution="paceline-ngram",
    version="1.0",
    group="paceline.plugins",
    value="mod_ngram",
    requires_api=(">=0.1,<0.2",),
    kinds=("command", "proposer"),
    needs=(),
    hash=HASH,
)


@pytest.mark.parametrize("name", ["Paceline_NGram", "paceline.ngram", "PACELINE--NGRAM", " paceline-_.ngram "])
def test_every_spelling_of_a_distribution_is_one_name(name):
    assert canonical_name(name) == "paceline-ngram"


def test_names_of_the_policy_are_canonical(policy):
    found = policy(f'mode = "allow"\nallow = ["Paceline_NGram >=0.1, <1"]\nhashes = {{"A.B" = "{HASH}"}}\n')

    assert [rule.distribution for rule in found.allow] == ["paceline-ngram"]
    assert str(found.allow[0]) == 'paceline-plugins.toml: allow[0] = "Paceline_NGram >=0.1, <1"'
    assert dict(found.hashes) == {"a-b": (HASH,)}


def test_without_a_file_everything_may_run(work):
    found = policy_in_force()

    assert (found.mode, found.file, found.lock_path) == ("open", None, Path("paceline.lock"))
    assert str(found) == "open (no paceline-plugins.toml)"


def test_the_option_wins_over_the_variable_over_the_working_directory(work, monkeypatch):
    for name in ("paceline-plugins.toml", "variable.toml", "option.toml"):
        (work / name).write_text('mode = "allow"\n')
    assert str(policy_in_force()) == "allow (paceline-plugins.toml)"
    monkeypatch.setenv("PACELINE_PLUGIN_POLICY", "")
    assert policy_in_force().file == Path("paceline-plugins.toml")
    monkeypatch.setenv("PACELINE_PLUGIN_POLICY", "variable.toml")
    assert policy_in_force().file == Path("variable.toml")
    assert policy_in_force("option.toml").file == Path("option.toml")


@pytest.mark.parametrize("named", ["gone.toml", "", "."])
def test_a_named_file_must_be_there(policy, named):
    policy('mode = "open"\n')
    with pytest.raises(PolicyFileError, match=r"^PACELINE-E210: plugin policy .* cannot be read: "):
        policy_in_force(named)


def test_a_broken_link_in_the_working_directory_is_not_overlooked(work):
    (work / "paceline-plugins.toml").symlink_to("gone.toml")
    with pytest.raises(PolicyFileError, match="cannot be read: No such file"):
        policy_in_force()


def test_the_lock_lies_beside_the_policy(work):
    (work / "team").mkdir()
    (work / "team" / "p.toml").write_text('mode = "locked"\n')
    with pytest.raises(
        PolicyFileError, match=r'E210: lock team/paceline\.lock is missing; make it with "paceline plugins lock"'
    ):
        policy_in_force("team/p.toml")
    assert policy_in_force("team/p.toml", with_lock=False).lock is None

    (work / "team" / "paceline.lock").write_text(lock_text([LOCKED]))
    found = policy_in_force("team/p.toml")
    assert found.lock.plugins == (LOCKED,)
    assert str(found) == "locked (team/p.toml, team/paceline.lock)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mode = None is none of open, allow, locked; give one"),
        ('mode = "lock"', "mode = 'lock' is none of open, allow, locked; give one"),
        ('mode = "open"\nalow = []', 'unknown key "alow" = []; did you mean "allow"?'),
        ('mode = "open"\nallow = []', 'allow means nothing in mode "open"; give mode = "allow", or leave it out'),
        ('mode = "allow"\nallow = "a"', "allow = 'a' is not a list such as"),
        ('mode = "allow"\nallow = ["a", 3]', "allow[1] = 3 is not a distribution and a range of versions such as"),
        ('mode = "allow"\nallow = ["a b"]', "allow[0] = 'a b' is not a distribution and a range"),
        ('mode = "allow"\nallow = ["a>>1"]', "allow[0] = 'a>>1' is not a distribution and a range"),
        ('mode = "allow"\nallow = ["a[x]>1"]', "allow[0] = 'a[x]>1' is not a distribution and a range"),
        ('mode = "allow"\nallow = ["*"]', "allow[0] = '*' is not a distribution and a range"),
        ('mode = "allow"\nallow = ["a>1", "A<1"]', "allow names a twice; give it once, with the whole range"),
        ('mode = "open"\ndeny = ["Paceline_Core"]', "deny[0]: paceline-core is the core itself, whose own plugins"),
        (f'mode = "open"\nhashes.paceline-core = "{HASH}"', "hashes: paceline-core is the core itself"),
        ('mode = "open"\nhashes.a = "sha256:0"', "hashes.a = 'sha256:0' is not of the form"),
        ('mode = "open"\nhashes.a = []', "hashes.a = [] is not of the form"),
        ('mode = "open"\nhashes = 3', "hashes = 3 is not a table of distribution"),
        ("mode = ", "is not TOML that can be read: "),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(policy, text, message):
    with pytest.raises(PolicyFileError) as error:
        policy(text)

    assert str(error.value).startswith("PACELINE-E210: ") and "paceline-plugins.toml" in str(error.value)
    assert message in str(error.value)


def test_a_policy_that_is_no_text(work):
    (work / "paceline-plugins.toml").write_bytes(b"\xff")
    with pytest.raises(PolicyFileError, match="is not TOML that can be read"):
        policy_in_force()


def test_the_lock_is_read_as_it_was_written_in_one_order(tmp_path):
    other = replace(LOCKED, name="alpha")
    text = lock_text([LOCKED, other])
    (tmp_path / "paceline.lock").write_text(text)

    assert text == lock_text([other, LOCKED])
    assert read_lock(tmp_path / "paceline.lock").plugins == (other, LOCKED)
    assert text.splitlines()[3:8] == [
        "[[plugin]]",
        'name = "alpha"',
        'distribution = "paceline-ngram"',
        'version = "1.0"',
        'group = "paceline.plugins"',
    ]


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("format = 1", "format = 2", "has format 2, this core reads 1; write it again with"),
        ("format = 1", "", "has format None, this core reads 1"),
        ("format = 1", "format = 1\nmode = 3", "has keys that no lock has: format, mode, plugin"),
        ("format = 1", "format = ", "is not TOML that can be read"),
        ('version = "1.0"', "version = 1", "plugin[0] is not of the form that a lock has; write it again"),
        ('version = "1.0"', "", "plugin[0] is not of the form"),
        ('version = "1.0"', 'version = "1.0"\nextra = ""', "plugin[0] is not of the form"),
        ("needs = []", "needs = [1]", "plugin[0] is not of the form"),
        ("needs = []", 'needs = ""', "plugin[0] is not of the form"),
        ('"paceline-ngram"', '"Paceline_NGram"', "plugin[0] has no canonical distribution or no hash"),
        (HASH, "md5:0", "plugin[0] has no canonical distribution or no hash"),
    ],
)
def test_a_lock_of_another_form_is_refused(tmp_path, right, wrong, message):
    file = tmp_path / "paceline.lock"
    file.write_text(lock_text([LOCKED]).replace(right, wrong))
    with pytest.raises(PolicyFileError) as error:
        read_lock(file)

    assert str(error.value).startswith("PACELINE-E210: ") and message in str(error.value)


def test_a_lock_with_a_plugin_twice_is_refused(tmp_path):
    (tmp_path / "paceline.lock").write_text(lock_text([LOCKED, LOCKED]))
    with pytest.raises(PolicyFileError, match="has a plugin twice; write it again"):
        read_lock(tmp_path / "paceline.lock")
