from __future__ import annotations

import glob
import os
import random
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from paceline.host.discovery import discover
from paceline.host.errors import PluginConflictError, PluginMetadataError, PluginNotFoundError
from paceline.host.loading import load
from paceline.host.policy import resolve
from paceline.host.selection import Selection


def order(plugins):
    return [(plugin.name, plugin.distribution, plugin.version) for plugin in plugins]


def test_names_distribution_version_and_entry_point_come_from_the_metadata(site):
    site.proposer("ngram", version="0.3.1")

    (plugin,) = discover(site.path)

    assert str(plugin) == 'plugin "ngram" 0.3.1 (distribution paceline-ngram, entry point "ngram = mod_ngram")'
    assert "mod_ngram" not in sys.modules


def test_name_with_a_hyphen_in_the_folder_is_read_from_the_headers(site):
    info = site.proposer("ngram")
    info.rename(info.parent / "paceline-ngram-1.0.dist-info")

    assert order(discover(site.path)) == [("ngram", "paceline-ngram", "1.0")]


def test_egg_info_is_found(site):
    info = site.proposer("ngram")
    (info / "METADATA").rename(info / "PKG-INFO")
    info.rename(info.parent / "paceline_ngram.egg-info")

    assert order(discover(site.path)) == [("ngram", "paceline-ngram", "1.0")]


def test_wheel_on_the_path_is_found(site, tmp_path):
    site.proposer("ngram")
    wheel = tmp_path / "paceline_ngram-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in site.folder.rglob("*"):
            archive.write(path, path.relative_to(site.folder))

    link = tmp_path / "link.whl"
    link.symlink_to(wheel)
    (plugin,) = discover([str(wheel), str(link)])

    assert order([plugin]) == [("ngram", "paceline-ngram", "1.0")]
    assert plugin.shadowed == ()


def test_a_corrupt_archive_hides_nothing(site, tmp_path):
    site.proposer("ngram")
    wheel = tmp_path / "broken-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("broken-1.0.dist-info/entry_points.txt", "no section = 1\n")

    assert order(discover([str(wheel), *site.path]))[-1] == ("ngram", "paceline-ngram", "1.0")


def test_site_folder_behind_a_link_is_read_once(site, tmp_path):
    site.proposer("ngram")
    link = tmp_path / "lib64"
    link.symlink_to(site.folder)

    (plugin,) = discover([*site.path, str(link)])

    assert plugin.shadowed == ()


def test_metadata_folder_behind_a_link_is_read_once(site, make_site, tmp_path):
    info = site.proposer("ngram")
    other = make_site(tmp_path / "other")
    (other.folder / info.name).symlink_to(info)

    (plugin,) = discover([*site.path, *other.path])

    assert plugin.shadowed == ()


def test_a_distribution_in_two_folders_is_the_one_that_an_import_finds(site, make_site, tmp_path):
    site.proposer("ngram", version="2.0")
    other = make_site(tmp_path / "other")
    hidden = other.metadata("Paceline_NGram", {"ngram": "mod_ngram"}, version="1.0")

    (plugin,) = discover([*site.path, *other.path])

    assert plugin.version == "2.0"
    assert plugin.shadowed == (str(hidden),)


def test_two_versions_of_one_distribution_in_one_folder_are_a_conflict_when_named(site):
    site.proposer("ngram", version="1.0")
    site.metadata("paceline-ngram", {"ngram": "mod_ngram"}, version="0.9")

    with pytest.raises(PluginConflictError) as error:
        load([Selection("proposer", "ngram")], search_path=site.path)

    assert "0.9" in str(error.value) and "1.0" in str(error.value) and "remove all but one" in str(error.value)
    assert "or name the one" not in str(error.value)


def test_two_distributions_with_one_name_are_an_error_that_names_both(site):
    site.proposer("ngram", distribution="alpha-drafts", version="1.0")
    site.proposer("ngram", distribution="beta-drafts", version="2.0")
    site.proposer("other")

    with pytest.raises(PluginConflictError) as error:
        load([Selection("proposer", "ngram")], search_path=site.path)

    text = str(error.value)
    assert text.startswith('PACELINE-E202: proposer "ngram" is offered 2 times')
    assert "alpha-drafts" in text and "beta-drafts" in text and 'such as "alpha-drafts/ngram"' in text
    assert not {"mod_alpha_drafts", "mod_beta_drafts"} & sys.modules.keys()


def test_a_conflict_that_nobody_names_disturbs_nobody(site):
    site.proposer("ngram", distribution="alpha-drafts")
    site.proposer("ngram", distribution="beta-drafts")
    site.proposer("other")

    assert load([Selection("proposer", "other")], search_path=site.path).one("proposer").name == "other"


def test_the_configuration_may_pick_the_distribution(site):
    site.proposer("ngram", distribution="alpha-drafts")
    site.proposer("ngram", distribution="beta-drafts")

    loaded = load([Selection("proposer", "Beta_Drafts/ngram")], search_path=site.path).one("proposer")

    assert loaded.distribution == "beta-drafts"
    assert "mod_alpha_drafts" not in sys.modules


def test_a_third_party_cannot_take_a_built_in_name_silently(site):
    site.proposer("lru", distribution="paceline-core")
    site.proposer("lru", distribution="evil")

    with pytest.raises(PluginConflictError, match=r"distribution evil.*distribution paceline-core"):
        load([Selection("eviction_policy", "lru")], search_path=site.path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[paceline.plugins]\nngram mod\n", "cannot be parsed"),
        (b"[paceline.plugins]\na = m\na = m\n", "already exists"),
        (b"[paceline.plugins]\nx = \xff\n", "decode"),
        (b"x = 1\n[paceline.plugins]\n", "no section headers"),
    ],
)
def test_metadata_that_cannot_be_parsed_is_shown_and_hides_no_other(site, content, reason):
    site.proposer("good_a")
    (site.proposer("bad") / "entry_points.txt").write_bytes(content)
    site.proposer("good_z")

    plugins = discover(site.path)

    assert [plugin.name for plugin in plugins] == ["", "good_a", "good_z"]
    assert plugins[0].distribution == "paceline-bad"
    assert reason in plugins[0].problem
    with pytest.raises(PluginNotFoundError, match=r"unreadable metadata: paceline-bad 1\.0"):
        resolve(plugins, "bad")


def test_broken_metadata_of_strangers_is_not_ours(site):
    site.proposer("good")
    info = site.folder / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("no section = 1\n")

    assert [plugin.name for plugin in discover(site.path)] == ["good"]


@pytest.mark.parametrize(("name", "value"), [("Bad-Name", "mod"), ("bad", "not a module!"), ("bad", "50%")])
def test_an_entry_point_of_the_wrong_form_is_refused_when_named(site, name, value):
    site.metadata("paceline-bad", {name: value})

    plugins = discover(site.path)

    assert plugins[0].problem.endswith(("[a-z][a-z0-9_]*", "module or module:object"))
    with pytest.raises(PluginMetadataError, match=r"E207.*paceline-bad.*reinstall or remove it"):
        resolve(plugins, name)


def test_leftovers_of_pip_are_passed_over(site):
    info = site.proposer("ngram")
    info.rename(info.parent / "~aceline_ngram-1.0.dist-info")

    assert discover(site.path) == ()


def test_order_is_the_same_however_the_plugins_were_installed(make_site, tmp_path, monkeypatch):
    sites = [make_site(tmp_path / f"site{index}") for index in range(3)]
    names = ["delta", "alpha", "echo", "bravo", "charlie"]
    real_glob = glob.glob
    seen = set()
    for seed in range(20):
        shuffler = random.Random(seed)
        shuffler.shuffle(names)
        for index, name in enumerate(names):
            sites[index % 3].proposer(name)
        path = [site.path[0] for site in sites]
        shuffler.shuffle(path)
        monkeypatch.setattr(glob, "glob", lambda *args, s=shuffler: s.sample(found := real_glob(*args), len(found)))
        seen.add(tuple(order(discover(path))))
        for site in sites:
            shutil.rmtree(site.folder)
            site.folder.mkdir()

    assert [[name for name, _, _ in names] for names in seen] == [["alpha", "bravo", "charlie", "delta", "echo"]]


def test_unknown_name_lists_what_is_installed_with_the_nearest(site):
    site.proposer("suffix", version="0.2")

    with pytest.raises(PluginNotFoundError) as error:
        load([Selection("proposer", "sufix")], search_path=site.path)

    assert str(error.value) == (
        'PACELINE-E201: proposer "sufix" is not installed; did you mean "suffix"?; '
        "installed plugins: suffix (paceline-suffix 0.2)"
    )


@pytest.mark.parametrize(
    ("name", "distribution"),
    [
        ("ngram", "paceline-ngram"),
        ("draft_model", "paceline-draft-model"),
        ("eagle", "paceline-eagle"),
        ("mtp", "paceline-mtp"),
        ("kv_offload", "paceline-kv-offload"),
    ],
)
def test_first_party_name_that_is_not_installed_gives_the_install_command(site, name, distribution):
    with pytest.raises(PluginNotFoundError) as error:
        load([Selection("proposer", name)], search_path=site.path)

    assert str(error.value).endswith(
        f'"{name}" is not installed; install it with: pip install {distribution}; installed plugins: none'
    )


def test_listing_25_plugins_is_quick_and_imports_neither_plugins_nor_torch(site):
    for index in range(25):
        site.proposer(f"plugin_{index:02}", "raise RuntimeError('imported')\n")
    start = time.perf_counter()
    plugins = discover(site.path)
    assert time.perf_counter() - start < 0.3
    assert len(plugins) == 25

    program = (
        "import sys; from paceline.host.discovery import discover; from paceline.host.report import list_rows;"
        "rows = list_rows(discover());"
        "print(sum(row.name.startswith('plugin_') for row in rows),"
        "[m for m in sys.modules if m in ('torch', 'transformers') or m.startswith('mod_')])"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*site.path, *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=1) == ["25", "[]\n"]


def test_current_folder_as_an_empty_path_entry(site, monkeypatch):
    site.proposer("ngram")
    monkeypatch.chdir(site.folder)

    assert [Path(plugin.location).parent for plugin in discover([""])] == [site.folder.resolve()]
