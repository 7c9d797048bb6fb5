"""Faults planted into a copy of the sources: each check of the policy, taken out in turn, turns a test red."""

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
    "names are compared as they are written": (
        "names.py",
        '_SEPARATORS.sub("-", name.strip()).lower()',
        "name",
        "test_policy_file.py::test_every_spelling_of_a_distribution_is_one_name",
    ),
    "the variable wins over the option": (
        "policy_file.py",
        "    if named is not None:\n        return Path(named)\n",
        "",
        "test_policy_file.py::test_the_option_wins_over_the_variable_over_the_working_directory",
    ),
    "a broken link is no policy": (
        "policy_file.py",
        "os.path.lexists(POLICY_NAME)",
        "os.path.exists(POLICY_NAME)",
        "test_policy_file.py::test_a_broken_link_in_the_working_directory_is_not_overlooked",
    ),
    "unknown keys are passed over": (
        "policy_file.py",
        "        if key not in _KEYS:",
        "        if False:",
        "test_policy_file.py::test_a_policy_that_cannot_be_meant_is_refused",
    ),
    "a version that is none is not denied": (
        "policy_file.py",
        "otherwise=True, prereleases=True",
        "otherwise=False, prereleases=True",
        "test_gate.py::test_deny_wins_in_every_mode",
    ),
    "pre-releases are allowed": (
        "policy_file.py",
        "prereleases=bool(self.versions.prereleases)",
        "prereleases=True",
        "test_gate.py::test_allow_lets_run_what_it_lists_by_distribution_and_version",
    ),
    "an order in the lock": (
        "lock_file.py",
        "sorted(plugins, key=lambda plugin: (plugin.name, plugin.distribution))",
        "list(plugins)",
        "test_policy_file.py::test_the_lock_is_read_as_it_was_written_in_one_order",
    ),
    "the policy is asked after the import": (
        "loading.py",
        "admit(installed, selection.name, rules, _label(selection))[0]) for selection in ordered]",
        "resolve(installed, selection.name, _label(selection))) for selection in ordered]\n"
        "    [declarations(plugin) for _, plugin in permitted]\n"
        "    [admit(installed, selection.name, rules) for selection in ordered]",
        "test_gate.py::test_allow_lets_run_what_it_lists_by_distribution_and_version",
    ),
    "commands are not under the policy": (
        "loading.py",
        "admit(discover(None), selection.name, policy, _label(selection))",
        "(resolve(discover(None), selection.name, _label(selection)), 0)",
        "test_gate.py::test_a_command_of_a_plugin_is_under_the_policy_too",
    ),
    "deny is not asked": (
        "gate.py",
        "if denied is not None and denied.denies(plugin.version):",
        "if False:",
        "test_gate.py::test_deny_wins_in_every_mode",
    ),
    "allow without a list allows all": (
        "gate.py",
        '        if policy.mode == "allow":',
        "        if False:",
        "test_gate.py::test_allow_lets_run_what_it_lists_by_distribution_and_version",
    ),
    "allow goes by the plugin's name": (
        "gate.py",
        "if rule.distribution == plugin.distribution), None)",
        "if rule.distribution in (plugin.distribution, plugin.name)), None)",
        "test_gate.py::test_a_package_that_only_calls_its_plugin_like_an_allowed_one_may_not_run",
    ),
    "allowed in any version": (
        "gate.py",
        "if not allowed.allows(plugin.version):",
        "if False:",
        "test_gate.py::test_allow_lets_run_what_it_lists_by_distribution_and_version",
    ),
    "required hashes are not compared": (
        "gate.py",
        "if digest not in wanted:",
        "if False:",
        "test_gate.py::test_a_required_hash_holds_in_every_mode",
    ),
    "the core is who says so": (
        "gate.py",
        'plugin.distribution == CORE and plugin.value.startswith("paceline.")',
        "plugin.distribution == CORE",
        "test_gate.py::test_who_calls_itself_the_core_is_not_the_core",
    ),
    "the core's name is free": (
        "gate.py",
        "    if plugin.distribution == CORE:",
        "    if False:",
        "test_gate.py::test_who_calls_itself_the_core_is_not_the_core",
    ),
    "the core's plugins need a rule": (
        "gate.py",
        "    if is_built_in(plugin):\n",
        "    if False:\n",
        "test_gate.py::test_the_core_s_own_plugins_run_in_every_mode",
    ),
    "claims are not seen": (
        "gate.py",
        "    if rival is not None:",
        "    if False:",
        "test_gate.py::test_locked_with_another_distribution_that_claims_the_name",
    ),
    "missing plugins are not seen": (
        "gate.py",
        '    if not meant and address.distribution in ("", *owners):',
        "    if False:",
        "test_gate.py::test_locked_and_not_installed",
    ),
    "what is not locked may run": (
        "gate.py",
        "    if entry is None:\n",
        '    if entry is None:\n        return ""\n    if entry is None:\n',
        "test_gate.py::test_locked_without_an_entry",
    ),
    "no lock, no check": (
        "policy_file.py",
        "        if self.lock is None:\n            raise",
        "        if self.lock is None:\n            return Lock(self.lock_path, ())\n            raise",
        "test_gate.py::test_locked_without_a_lock_lets_nothing_run",
    ),
    "versions are not compared": (
        "gate.py",
        "if plugin.version != entry.version:",
        "if False:",
        "test_gate.py::test_locked_with_another_version",
    ),
    "entry points are not compared": (
        "gate.py",
        "if (ENTRY_POINT_GROUP, plugin.value) != (entry.group, entry.value):",
        "if False:",
        "test_gate.py::test_locked_with_another_entry_point",
    ),
    "the locked range is not asked": (
        "gate.py",
        "    _check_locked_range(plugin, entry)\n",
        "",
        "test_gate.py::test_locked_for_another_api_is_refused_before_it_is_imported",
    ),
    "hashes are not compared": (
        "gate.py",
        "if digest != entry.hash:",
        "if False:",
        "test_gate.py::test_locked_with_a_changed_file",
    ),
    "declarations are not compared": (
        "locking.py",
        "        if values != getattr(entry, what):",
        "        if False:",
        "test_gate.py::test_locked_with_other_capabilities_than_it_declares",
    ),
    "a plugin is imported to be locked whatever the policy says": (
        "locking.py",
        "        permit_before_locking(plugin, policy)",
        "        pass",
        "test_gate.py::test_the_rest_of_the_policy_is_heeded_before_a_plugin_is_imported_to_be_locked",
    ),
    "editable installs are taken": (
        "record.py",
        "    if _is_editable(info, listed):",
        "    if False:",
        "test_gate.py::test_editable_installs_have_no_place_under_a_lock",
    ),
    "paths are not hashed": (
        "record.py",
        'f"{len(path.encode())} {path} {len(content)}\\n"',
        'f"{len(content)}\\n"',
        "test_integrity.py::test_the_digest_is_that_of_paths_and_contents_in_order",
    ),
    "the order of RECORD is hashed": (
        "record.py",
        "tuple(sorted(paths))",
        "tuple(paths)",
        "test_integrity.py::test_paths_are_those_of_the_record_without_what_the_installer_writes",
    ),
    "bytecode is left out wherever it lies": (
        "integrity.py",
        'return path.endswith(".pyc") and os.path.basename(os.path.dirname(path)) == "__pycache__"',
        'return path.endswith(".pyc")',
        "test_integrity.py::test_a_file_that_the_record_does_not_know_is_refused",
    ),
    "added files are not seen": (
        "integrity.py",
        "(_added(files), ",
        "(",
        "test_integrity.py::test_a_file_that_the_record_does_not_know_is_refused",
    ),
    "linked folders are not seen": (
        "integrity.py",
        "[*names, *links]",
        "names",
        "test_integrity.py::test_a_linked_folder_is_refused",
    ),
    "shadows are not seen": (
        "integrity.py",
        "_shadowed(plugin, files), ",
        "",
        "test_integrity.py::test_another_folder_earlier_on_the_path_does_not_take_the_import",
    ),
    "the entry point may lead anywhere": (
        "integrity.py",
        "{entry, *_top_modules(files)}",
        "_top_modules(files)",
        "test_integrity.py::test_an_entry_point_that_leads_out_of_the_distribution_is_refused",
    ),
    "what is loaded is not looked at": (
        "integrity.py",
        "    if module in sys.modules:",
        "    if False:",
        "test_integrity.py::test_a_module_that_is_loaded_from_elsewhere_is_refused",
    ),
    "cached bytecode is trusted": (
        "integrity.py",
        ", _bytecode(files)):",
        "):",
        "test_integrity.py::test_cached_bytecode_of_another_source_is_refused",
    ),
    "checking writes bytecode": (
        "integrity.py",
        "    def set_data(",
        "    def set_nothing(",
        "test_integrity.py::test_checking_leaves_nothing_behind",
    ),
}


def outcome(src: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests of this folder on the sources in ``src``."""
    paths = [f"{HERE / test}" for test in tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *paths]
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
    (copy / "paceline" / "host" / "__init__.py").write_text("raise RuntimeError('the copy')\n")
    assert "RuntimeError: the copy" in outcome(copy, ["test_gate.py"]).stderr


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(copy: Path, fault: str) -> None:
    module, right, wrong, test = FAULTS[fault]
    file = copy / "paceline" / "host" / module
    text = file.read_text(encoding="utf-8")
    assert text.count(right) == 1, f"{module} has no such line any more"
    imports = "from paceline.host.policy import resolve\nfrom paceline.host.registration import declarations\n"
    changed = text.replace(right, wrong)
    if module == "loading.py":  # what the wrong lines need
        changed = changed.replace("from paceline.host.selection", f"{imports}from paceline.host.selection", 1)
    file.write_text(changed, encoding="utf-8")

    result = outcome(copy, [test])
    assert result.returncode == 1 and " failed" in result.stdout, result.stdout
