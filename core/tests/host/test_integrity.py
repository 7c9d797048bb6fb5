"""What lies on the disk against what RECORD lists: nothing that would run may be unknown to it."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys
from pathlib import Path

import pytest

from paceline.host.discovery import discover
from paceline.host.errors import PluginChangedError, PluginRecordError, PluginStrangeFileError
from paceline.host.integrity import checked_digest
from paceline.host.record import installed_files


@pytest.fixture
def package(site):
    """A distribution with a package of three modules and a script."""
    modules = {
        "ducks/__init__": "",
        "ducks/plugin": "from ducks.inner import pond\n",
        "ducks/inner/__init__": "",
        "ducks/inner/pond": "x = 1\n",
    }
    for folder in ("ducks", "ducks/inner"):
        (site.folder / folder).mkdir()
    info = site.add("Duck_Drafts", {"ducks": "ducks.plugin"}, modules)
    return info


@pytest.fixture
def plugin(site, package):
    (found,) = discover(site.path)
    return found


def strange(plugin):
    with pytest.raises(PluginStrangeFileError) as error:
        checked_digest(plugin)
    text = str(error.value)
    assert text.startswith("PACELINE-E220: ")
    assert "remove what does not belong to it and reinstall it with: pip install --force-reinstall duck-drafts" in text
    assert not any(name.split(".")[0] == "ducks" for name in sys.modules)
    return text


def record(info: Path, *lines: str) -> None:
    with open(info / "RECORD", "a") as file:
        file.write("\n".join(lines) + "\n")


def test_paths_are_those_of_the_record_without_what_the_installer_writes(plugin, package, site):
    (site.folder.parent / "bin").mkdir()
    (site.folder.parent / "bin" / "quack").write_text("#!/here/python\n")
    (package / "entry_points.txt").write_text("[console_scripts]\nquack = ducks:main\n[paceline.plugins]\na = b\n")
    own = [
        f"{package.name}/{name},," for name in ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "WHEEL")
    ]
    cache = [
        "ducks/__pycache__/plugin.cpython-311.pyc,,",
        "../bin/quack,,",
        "../bin/quack-script.pyw,,",
        "../share/x,,",
    ]
    record(package, "ducks/plugin.py,sha256=abc,3", ".\\ducks\\inner\\pond.py,,", *own, *cache)

    assert installed_files(plugin).paths == (
        "../share/x",
        "Duck_Drafts-1.0.dist-info/METADATA",
        "Duck_Drafts-1.0.dist-info/WHEEL",
        "Duck_Drafts-1.0.dist-info/entry_points.txt",
        "ducks/__init__.py",
        "ducks/inner/__init__.py",
        "ducks/inner/pond.py",
        "ducks/plugin.py",
    )


def test_the_digest_is_that_of_paths_and_contents_in_order(plugin, site):
    import hashlib

    total = hashlib.sha256(b"paceline plugin files 1\n")
    for path in installed_files(plugin).paths:
        content = (site.folder / path).read_bytes()
        total.update(b"%d %s %d\n%s" % (len(path), path.encode(), len(content), content))

    assert checked_digest(plugin) == f"sha256:{total.hexdigest()}"


def test_the_order_of_the_record_changes_nothing(plugin, package):
    before = checked_digest(plugin)
    lines = (package / "RECORD").read_text().splitlines()
    (package / "RECORD").write_text("\r\n".join(reversed(lines)) + "\r\n")

    assert checked_digest(plugin) == before


@pytest.mark.parametrize("path", ["ducks/plugin.py", "ducks/inner/__init__.py", "Duck_Drafts-1.0.dist-info/METADATA"])
def test_the_digest_changes_with_any_file(plugin, site, path):
    before = checked_digest(plugin)
    (site.folder / path).write_text("# another\n")

    assert checked_digest(plugin) != before


def test_the_digest_changes_when_content_moves_between_files(plugin, site):
    before = checked_digest(plugin)
    for name, text in (("plugin", "x = 1\n"), ("inner/pond", "from ducks.inner import pond\n")):
        (site.folder / "ducks" / f"{name}.py").write_text(text)

    assert checked_digest(plugin) != before


def test_a_missing_file_is_named(plugin, site):
    (site.folder / "ducks" / "inner" / "pond.py").unlink()
    with pytest.raises(PluginChangedError, match=r"its RECORD lists 'ducks/inner/pond\.py', which cannot be read"):
        checked_digest(plugin)


@pytest.mark.parametrize(
    "path",
    [
        "ducks/added.py",
        "ducks/inner/added.py",
        "ducks/new/__init__.py",
        "ducks/plugin.abi3.so",
        "ducks/plugin.pyc",
        "ducks/new/data.json",
        "ducks/__pycache__/added.py",
    ],
)
def test_a_file_that_the_record_does_not_know_is_refused(plugin, site, path):
    (site.folder / path).parent.mkdir(exist_ok=True)
    (site.folder / path).write_text("")

    assert f"{path} is not in its RECORD" in strange(plugin)


def test_many_unknown_files_are_counted(plugin, site):
    for index in range(5):
        (site.folder / "ducks" / f"added_{index}.py").touch()

    text = strange(plugin)
    assert "ducks/added_2.py is not in its RECORD and 2 more" in text


def test_a_linked_folder_is_refused(plugin, site, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (site.folder / "ducks" / "linked").symlink_to(tmp_path / "elsewhere")

    assert "ducks/linked is not in its RECORD" in strange(plugin)


def test_a_file_added_to_the_record_as_well_changes_the_digest(plugin, package, site):
    before = checked_digest(plugin)
    (site.folder / "ducks" / "added.py").touch()
    record(package, "ducks/added.py,,")

    assert checked_digest(plugin) != before


def test_another_folder_earlier_on_the_path_does_not_take_the_import(plugin, make_site, tmp_path, monkeypatch):
    other = make_site(tmp_path / "other")
    (other.folder / "ducks").mkdir()
    (other.folder / "ducks" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(other.folder))

    assert f"importing ducks would run {other.folder}/ducks/__init__.py, which is not in its RECORD" in strange(plugin)


@pytest.mark.parametrize("shadow", ["flat.abi3.so", "flat/__init__.py"])
def test_nothing_beside_a_single_module_takes_its_import(site, shadow):
    site.add("flat", {"flat": "flat"}, {"flat": ""})
    (plugin,) = discover(site.path)
    assert checked_digest(plugin)
    (site.folder / shadow).parent.mkdir(exist_ok=True)
    (site.folder / shadow).touch()

    with pytest.raises(PluginStrangeFileError, match=r"importing flat would run .*/flat.*, which is not in its RECORD"):
        checked_digest(plugin)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("json", "importing json would run "),
        ("ducks.gone:plugin", "its RECORD has no module ducks.gone, which the entry point names"),
        ("nowhere", "its RECORD has no module nowhere"),
    ],
)
def test_an_entry_point_that_leads_out_of_the_distribution_is_refused(plugin, package, site, value, reason):
    (package / "entry_points.txt").write_text(f"[paceline.plugins]\nducks = {value}\n")
    (found,) = discover(site.path)

    assert reason in strange(found)


def test_a_module_that_is_loaded_from_elsewhere_is_refused(plugin, monkeypatch):
    module = type(sys)("ducks.plugin")
    module.__file__ = "/elsewhere/plugin.py"
    monkeypatch.setitem(sys.modules, "ducks.plugin", module)
    with pytest.raises(PluginStrangeFileError, match=r"importing ducks\.plugin would run /elsewhere/plugin\.py"):
        checked_digest(plugin)


def test_cached_bytecode_of_the_source_is_fine(plugin, site):
    before = checked_digest(plugin)
    for path in (site.folder / "ducks").rglob("*.py"):
        py_compile.compile(str(path), doraise=True)

    assert checked_digest(plugin) == before


@pytest.mark.parametrize("mode", py_compile.PycInvalidationMode)
def test_cached_bytecode_of_another_source_is_refused(plugin, site, tmp_path, mode):
    source = site.folder / "ducks" / "inner" / "pond.py"
    planted = tmp_path / "pond.py"
    planted.write_text("x = 2\n")
    cache = importlib.util.cache_from_source(str(source))
    py_compile.compile(str(planted), cfile=cache, invalidation_mode=mode, doraise=True)
    if mode is py_compile.PycInvalidationMode.TIMESTAMP:  # as the true source's cache would look
        header = Path(cache).read_bytes()[:8] + int(source.stat().st_mtime).to_bytes(4, "little")
        Path(cache).write_bytes(header + (6).to_bytes(4, "little") + Path(cache).read_bytes()[16:])
    if mode is py_compile.PycInvalidationMode.CHECKED_HASH:
        own = importlib.util.source_hash(source.read_bytes())
        Path(cache).write_bytes(Path(cache).read_bytes()[:8] + own + Path(cache).read_bytes()[16:])

    assert "the cached bytecode of ducks/inner/pond.py is not what ducks/inner/pond.py compiles to" in strange(plugin)


def test_checking_leaves_nothing_behind(plugin, site, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    source = site.folder / "ducks" / "plugin.py"
    cache = Path(py_compile.compile(str(source), doraise=True))
    os.utime(source, (1, 1))  # so that the cache is out of date, and an import would write it anew
    before = {path: path.is_file() and path.read_bytes() for path in site.folder.rglob("*")}
    assert cache in before and checked_digest(plugin)

    assert {path: path.is_file() and path.read_bytes() for path in site.folder.rglob("*")} == before


def test_a_wheel_on_the_path_has_no_record_to_check(plugin, site, tmp_path):
    import zipfile

    wheel = tmp_path / "duck_drafts-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in site.folder.rglob("*"):
            archive.write(path, path.relative_to(site.folder))
    (packed,) = discover([str(wheel)])
    with pytest.raises(PluginRecordError, match="has no RECORD that can be read"):
        checked_digest(packed)


def test_a_namespace_package_is_checked_where_it_holds_files(site):
    (site.folder / "lake").mkdir()
    (site.folder / "lake" / "ducks").mkdir()
    (site.folder / "lake" / "geese").mkdir()
    (site.folder / "lake" / "geese" / "theirs.py").touch()
    site.add("lake-ducks", {"ducks": "lake.ducks.plugin"}, {"lake/ducks/__init__": "", "lake/ducks/plugin": ""})
    (plugin,) = discover(site.path)

    assert checked_digest(plugin)
    (site.folder / "lake" / "ducks" / "added.py").touch()
    with pytest.raises(PluginStrangeFileError, match=r"lake/ducks/added\.py is not in its RECORD"):
        checked_digest(plugin)


def test_a_namespace_in_an_earlier_folder_lends_no_modules(site, make_site, tmp_path, monkeypatch):
    """Without an ``__init__`` a folder is shared along the path, and each of its modules is looked for anew."""
    (site.folder / "pond").mkdir()
    site.add("pond", {"pond": "pond.plugin"}, {"pond/plugin": "from pond import helper\n", "pond/helper": ""})
    (plugin,) = discover(site.path)
    assert checked_digest(plugin)
    other = make_site(tmp_path / "other")
    (other.folder / "pond").mkdir()
    (other.folder / "pond" / "helper.py").touch()
    monkeypatch.syspath_prepend(str(other.folder))

    with pytest.raises(
        PluginStrangeFileError, match=r"importing pond\.helper would run .*other/pond/helper\.py, which"
    ):
        checked_digest(plugin)
