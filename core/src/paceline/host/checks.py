"""Whether specs and built objects have the form of the contract: found at start, not at the first request."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

from paceline.api.specs import Spec
from paceline.host.discovery import InstalledPlugin
from paceline.host.errors import PluginSignatureError
from paceline.host.kinds import Kind

__all__ = ["check_capabilities", "check_object", "check_spec"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_spec(plugin: InstalledPlugin, kind: Kind, spec: Spec[Any, Any, Any]) -> None:
    """Check a spec's fields and the signatures of ``describe`` and ``build``.

    Raises:
        PluginSignatureError: naming every fault.
    """
    faults = list(_faults_of_spec(spec))
    if faults:
        raise PluginSignatureError(f'{plugin}, {kind.label} "{spec.name}": {"; ".join(faults)}')


def _faults_of_spec(spec: Spec[Any, Any, Any]) -> Iterator[str]:
    if not isinstance(spec.name, str) or not _NAME.fullmatch(spec.name):
        yield f"name {spec.name!r} is not of the form [a-z][a-z0-9_]*"
    if not (inspect.isclass(spec.options) and issubclass(spec.options, BaseModel)):
        yield f"options {spec.options!r} is not a pydantic model class"
    elif spec.options is BaseModel:
        yield "options is pydantic's BaseModel itself; give a subclass of it, empty if there are no options"
    if isinstance(spec.needs, str) or not all(isinstance(need, str) for need in spec.needs):
        yield f"needs {spec.needs!r} is not a set of strings"
    yield from _faults_of_call("describe", spec.describe, ("options", "target"))
    yield from _faults_of_call("build", spec.build, ("options", "context"))


def check_capabilities(plugin: InstalledPlugin, kind: Kind, described: object) -> None:
    """Check what ``describe`` returned.

    Raises:
        PluginSignatureError: if it is not of the kind's class.
    """
    if not isinstance(described, kind.capabilities):
        raise PluginSignatureError(
            f"{plugin}, describe returned {type(described).__name__}, not {_public(kind.capabilities)}"
        )


def check_object(plugin: InstalledPlugin, kind: Kind, built: object) -> None:
    """Check the class and the methods of what ``build`` returned.

    Raises:
        PluginSignatureError: naming the missing methods, or the parameters that differ.
    """
    where = f"{plugin}, build returned an object of class {type(built).__name__}"
    faults = [fault for name, method in _contract(kind.base) for fault in _faults_of_method(built, name, method)]
    if not isinstance(built, kind.base):
        faults.insert(0, f"it does not derive from {_public(kind.base)}")
    if faults:
        raise PluginSignatureError(f"{where}: {'; '.join(faults)}")


def _contract(base: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    return ((name, value) for name, value in vars(base).items() if inspect.isfunction(value) and name[0] != "_")


def _faults_of_method(built: object, name: str, method: Callable[..., Any]) -> Iterator[str]:
    own = getattr(built, name, None)
    if own is None:
        yield f"method {name} is missing"
    else:
        yield from _faults_of_call(name, own, tuple(inspect.signature(method).parameters)[1:])


def _faults_of_call(name: str, function: object, parameters: tuple[str, ...]) -> Iterator[str]:
    if not callable(function):
        yield f"{name} is {function!r}, which cannot be called"
    elif inspect.iscoroutinefunction(function):
        yield f"{name} is a coroutine function, the contract's is not"
    elif (fault := _binding_fault(function, parameters)) is not None:
        yield f"{name} must take ({', '.join(parameters)}): {fault}"


def _binding_fault(function: Callable[..., Any], parameters: tuple[str, ...]) -> str | None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some callables written in C have none
        return None
    try:
        signature.bind(*parameters)
    except TypeError as error:
        return f"{error}, it takes {signature}"
    return None


def _public(cls: type) -> str:
    return f"paceline.api.{cls.__name__}"
