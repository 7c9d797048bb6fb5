"""What the contracts of all kinds share."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

import pytest
import torch
from packaging.specifiers import SpecifierSet

from paceline.api.errors import did_you_mean
from paceline.engine.build import OFFERS
from paceline.engine.llm import LLM
from paceline.host.loading import Loaded, load
from paceline.host.selection import Selection
from paceline.testing.engines import engine
from paceline.testing.errors import KitError
from paceline.testing.models import tiny_model

__all__ = ["Contract", "check_memory", "should"]

F = TypeVar("F", bound=Callable[..., None])


def should(test: F) -> F:
    """Mark a test as a recommendation: ``paceline plugins check`` tells of it, and does not fail for it."""
    vars(test)["level"] = "should"
    return test


class Contract:
    """Tests that every plugin of a kind is held to. Derive from it in a class whose name begins with ``Test``.

    Attributes:
        plugin: The plugin's name, as a configuration gives it.
        options: Its options.
        expected_failures: Test -> why it fails for this plugin. Strict: one that passes is a failure.
        settings: What a class may set.
    """

    kind: ClassVar[str]
    plugin: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    expected_failures: ClassVar[Mapping[str, str]] = {}
    settings: ClassVar[tuple[str, ...]] = ("plugin", "options", "expected_failures")

    def __init_subclass__(cls) -> None:
        for name, reason in cls.expected_failures.items():
            tests = [test for test in dir(cls) if test.startswith("test_")]
            if name not in tests:
                raise KitError(f'{cls.__name__}.expected_failures names "{name}"{did_you_mean(name, tests)}')
            if not reason:
                raise KitError(f'{cls.__name__}.expected_failures gives no reason for "{name}"; say why it fails')

    @pytest.fixture(autouse=True)
    def _mark_expected_failure(self, request: pytest.FixtureRequest) -> None:
        reason = self.expected_failures.get(request.node.name)
        if reason is not None:
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))

    @classmethod
    def model(cls) -> str:
        """Folder of the target; the kit's tiny model unless overridden."""
        return tiny_model()

    def load(self) -> Loaded:
        """The plugin, through every check that the host makes, the plugin policy in force among them."""
        if not self.plugin:
            raise KitError(f'{type(self).__name__} names no plugin; set the class attribute: plugin = "my_idea"')
        selection = Selection(self.kind, self.plugin, dict(self.options))
        return load([selection], offers=OFFERS).items[0]

    def choice(self) -> dict[str, Any]:
        """The fields of an engine's configuration that name the plugin."""
        raise NotImplementedError

    def engine(self, **settings: Any) -> AbstractContextManager[LLM]:
        """An engine with the plugin; ``settings`` are fields of its configuration."""
        self.load()
        return engine(self.model(), **self.choice() | settings)

    def plain(self, **settings: Any) -> AbstractContextManager[LLM]:
        """The same without the plugin."""
        return engine(self.model(), **settings)

    @should
    def test_api_range_is_bounded(self) -> None:
        """``requires_api`` ends below the next version that may break the plugin."""
        wanted = self.load().spec.requires_api
        has_end = any(part.operator in ("<", "<=", "==", "~=") for part in SpecifierSet(wanted))
        assert has_end, f'requires_api is "{wanted}", without an end; write a range such as ">=0.1,<0.2"'

    @should
    def test_options_are_described(self) -> None:
        """Every option says what it is, for listings and schemas."""
        fields = self.load().spec.options.model_fields
        silent = [name for name, field in fields.items() if not field.description]
        assert not silent, f"options without a description: {', '.join(silent)}; give Field(description=...)"

    @should
    def test_declaring_imports_no_torch(self) -> None:
        """Listing the plugins costs no seconds: the entry point's module does not import torch."""
        module = self.load().plugin.value.partition(":")[0]
        code = f"import sys; sys.path[:] = {sys.path!r}; import {module}; sys.exit('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"importing {module} imports torch; import it inside of build"


def check_memory(work: Callable[[], object], *, rounds: int, warm_up: int, bytes_per_round: int) -> None:
    """Do the same work again and again; what stays behind in each round must be next to nothing.

    Args:
        work: One round.
        rounds: Rounds that are measured.
        warm_up: Rounds before.
        bytes_per_round: Bound, in Python objects, arrays and tensors on the CPU.

    Raises:
        AssertionError: naming what stayed, and where it was allocated.
    """
    for _ in range(warm_up):
        work()
    tracemalloc.start()
    try:
        work()
        before, tensors_before = _snapshot(), _tensor_bytes()
        for _ in range(rounds):
            work()
        after, tensors_after = _snapshot(), _tensor_bytes()
    finally:
        tracemalloc.stop()
    differences = after.compare_to(before, "lineno")
    growth = sum(each.size_diff for each in differences) + tensors_after - tensors_before
    most = max(differences, key=lambda each: each.size_diff)
    assert growth <= rounds * bytes_per_round, (
        f"{growth} bytes stayed behind after {rounds} rounds, bound {rounds * bytes_per_round}; most were allocated at "
        f"{most.traceback}: drop on release what is kept for a request"
    )


def _snapshot() -> tracemalloc.Snapshot:
    gc.collect()
    return tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])


def _tensor_bytes() -> int:
    return sum(dict(_storages()).values())


def _storages() -> Iterator[tuple[int, int]]:
    for each in gc.get_objects():
        if type(each) in (torch.Tensor, torch.nn.Parameter) and each.device.type == "cpu":
            storage = each.untyped_storage()
            yield storage.data_ptr(), storage.nbytes()
