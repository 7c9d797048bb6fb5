"""Faults planted into a copy of the sources: each must turn a test of this folder red."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORE = HERE.parents[1]

# (module, right, wrong, the test that must fail)
FAULTS = {
    "the file beats the environment": (
        "sources.py",
        "layers = (from_file, checked(read_environment(variables)), ",
        "layers = (checked(read_environment(variables)), from_file, ",
        "test_sources.py::test_command_line_over_environment_over_file_over_default",
    ),
    "the options of a plugin that is named twice are dropped": (
        "sources.py",
        "if name in stronger and stronger[name] != ",
        "if name in stronger and False != ",
        "test_sources.py::test_options_of_one_plugin_are_merged_and_each_has_its_origin",
    ),
    "options are never dropped": (
        "sources.py",
        "if name in stronger and stronger[name] != ",
        "if name not in _OPTIONS_OF and stronger[name] != ",
        "test_sources.py::test_another_plugin_does_not_inherit_the_options",
    ),
    "any file may allow remote code": (
        "sources.py",
        "if named is None:",
        "if found is None:",
        "test_sources.py::test_a_file_that_merely_lies_there_runs_no_code",
    ),
    "lines counted from 0": (
        "file.py",
        "yield (*path, str(key.value)), key.start_mark.line + 1",
        "yield (*path, str(key.value)), key.start_mark.line",
        "test_sources.py::test_a_value_is_refused_with_its_place",
    ),
    "a key given twice is taken": (
        "file.py",
        "        if key.value in first:",
        "        if key.value in ():",
        "test_file.py::test_a_fault_is_named_with_line_key_and_remedy",
    ),
    "two devices are let through": (
        "argument.py",
        "return any(_same(value, inert) for inert in self.inert)",
        "return bool(self.inert)",
        "test_arguments.py::test_two_devices_are_refused_and_one_is_not",
    ),
    "an idle argument reaches the fields": (
        "argument.py",
        "if name not in inactive}",
        "if name}",
        "test_arguments.py::test_a_value_that_asks_for_nothing_changes_nothing",
    ),
    "a row changed and the page not": (
        "arguments.py",
        '"there is one block manager"',
        '"there are two block managers"',
        "test_arguments.py::test_the_page_is_what_the_table_prints",
    ),
    "a field without a place in the file": (
        "layout.py",
        '            "gpu_memory_utilization",\n',
        "",
        "test_file.py::test_every_field_has_one_place_in_the_file",
    ),
    "variables of others are refused": (
        "environment.py",
        "_TYPO_CUTOFF = 0.85",
        "_TYPO_CUTOFF = 0.4",
        "test_sources.py::test_variables_of_others_are_left_alone",
    ),
    "show tells no origin": (
        "commands.py",
        "else str(origin)))",
        'else ""))',
        "test_commands.py::test_show_prints_every_field_value_and_origin",
    ),
}


def outcome(src: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests of this folder on the sources in ``src``."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        *(f"{HERE / test}" for test in tests),
    ]
    variables = os.environ | {"PYTHONPATH": str(src), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=CORE, env=variables, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the sources."""
    return Path(shutil.copytree(CORE / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.slow
def test_the_copy_is_green_and_it_is_the_copy_that_is_tested(copy: Path) -> None:
    result = outcome(copy, sorted({test for _, _, _, test in FAULTS.values()}))
    assert result.returncode == 0, result.stdout
    (copy / "paceline" / "config" / "__init__.py").write_text("raise RuntimeError('the copy')\n")
    assert "RuntimeError: the copy" in outcome(copy, ["test_config.py"]).stderr


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(copy: Path, fault: str) -> None:
    module, right, wrong, test = FAULTS[fault]
    file = copy / "paceline" / "config" / module
    text = file.read_text(encoding="utf-8")
    assert text.count(right) == 1, f"{module} has no such line any more"
    file.write_text(text.replace(right, wrong), encoding="utf-8")

    result = outcome(copy, [test])
    assert result.returncode == 1 and " failed" in result.stdout, result.stdout
