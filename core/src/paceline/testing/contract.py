"""What the contracts of all kinds share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

import pytest
from packaging.specifiers import SpecifierSet

from paceline.api.errors import did_you_mean
from paceline.engine.build import OFFERS
from paceline.engine.llm import LLM
from paceline.host.loading import Loaded, load
from paceline.host.selection import Selection
from paceline.testing.engines import engine
from paceline.testing.errors import KitError
from paceline.testing.models import tiny_model

__all__ = ["Contract", "should"]

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
        expected_failures: Test, such as ``"test_x"`` or ``"test_x[0.7]"`` -> why it fails for this plugin. Strict: one
            that passes is a failure.
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
            if name.partition("[")[0] not in tests:
                raise KitError(f'{cls.__name__}.expected_failures names "{name}"{did_you_mean(name, tests)}')
            if not reason:
                raise KitError(f'{cls.__name__}.expected_failures gives no reason for "{name}"; say why it fails')

    @pytest.fixture(autouse=True)
    def _mark_expected_failure(self, request: pytest.FixtureRequest) -> None:
        names = (request.node.name, request.node.originalname)
        reason = next((self.expected_failures[name] for name in names if name in self.expected_failures), None)
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
