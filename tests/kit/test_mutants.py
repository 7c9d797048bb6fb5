"""Each contract passes an honest plugin and catches wrong ones, by the test that is there for the fault.

``python tests/kit/test_mutants.py`` writes ``mutants.md`` anew.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline.testing as kit
from paceline.api import PacelineError

HERE = Path(__file__).parent
CONTRACTS: dict[str, tuple[str, dict[str, Any]]] = {
    "proposers": ("ProposerContract", {}),
    "eviction": ("EvictionPolicyContract", {}),
    "identity": ("IdentityContract", {"apart": [({"tenant": "a", "b": 1}, {"tenant": "b", "b": 1})]}),
    "controllers": ("ControllerContract", {}),
    "constraints": ("ConstraintContract", {"asks": [3, 5]}),
    "observers": ("ObserverContract", {}),
    "commands": ("CommandContract", {"arguments": []}),
}


def mutants() -> Iterator[tuple[str, str, str, str]]:
    """Kind, class, fault and the test that catches it, as the sources have them."""
    for kind in CONTRACTS:
        tree = ast.parse((HERE / "paceline_kit_mutants" / f"{kind}.py").read_text(encoding="utf-8"))
        faults = {node.name: ast.get_docstring(node) for node in tree.body if isinstance(node, ast.ClassDef)}
        (table,) = (n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "CAUGHT_BY")
        for name, test in zip(table.keys, table.values, strict=True):
            yield kind, name.id, faults[name.id], test.value


def spec_name(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def contract_of(kind: str, name: str) -> Any:
    contract, settings = CONTRACTS[kind]
    return type("TestMutant", (getattr(kit, contract),), {"plugin": f"mutants:{spec_name(name)}", **settings})()


def run(contract: Any, test: str) -> None:
    name, *values = test.split()
    getattr(contract, name)(*map(ast.literal_eval, values))


@pytest.mark.parametrize(("kind", "name", "test"), [pytest.param(k, n, t, id=f"{k}-{n}") for k, n, _, t in mutants()])
def test_mutant_is_caught(mutants_site: Path, kind: str, name: str, test: str) -> None:
    with pytest.raises((AssertionError, LookupError, PacelineError, argparse.ArgumentError)):
        run(contract_of(kind, name), test)


HONEST = {
    "proposers": "Pairing",
    "eviction": "FirstIn",
    "identity": "Tenant",
    "controllers": "Following",
    "constraints": "Residue",
    "observers": "Counting",
    "commands": "Printing",
}


@pytest.mark.parametrize(("kind", "test"), sorted({(kind, test) for kind, _, _, test in mutants()}))
def test_honest_plugin_passes(mutants_site: Path, kind: str, test: str) -> None:
    run(contract_of(kind, HONEST[kind]), test)


def table() -> str:
    rows = [f"| {kind} | {spec_name(name)} | {fault} | `{test}` |" for kind, name, fault, test in mutants()]
    head = "# Mutants of the conformance kit\n\nEach has one fault, and the test beside it catches it.\n\n"
    return head + "\n".join(["| contract | mutant | fault | caught by |", "| --- | --- | --- | --- |", *rows]) + "\n"


def test_table_is_kept() -> None:
    assert (HERE / "mutants.md").read_text(encoding="utf-8") == table(), "run: python tests/kit/test_mutants.py"


def test_every_contract_has_mutants() -> None:
    kinds = [kind for kind, *_ in mutants()]
    assert all(kinds.count(kind) >= 4 for kind in CONTRACTS)


if __name__ == "__main__":
    (HERE / "mutants.md").write_text(table(), encoding="utf-8")
    sys.exit(0)
