"""Whether the files that an import of a plugin would run are those of its RECORD. Nothing is imported to find out."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import PathFinder, SourceFileLoader, all_suffixes
from pathlib import Path

import entrypoints

from paceline.host.discovery import InstalledPlugin
from paceline.host.errors import PluginStrangeFileError
from paceline.host.record import InstalledFiles, installed_files

__all__ = ["checked_digest"]

_MAX_SHOWN = 3


def checked_digest(plugin: InstalledPlugin) -> str:
    """The digest of a distribution's files, when they are all that its plugin would run.

    Beside the listed files nothing may lie in the distribution's folders; an import of its modules must find these
    files and no others; cached bytecode must be what the sources compile to.

    Raises:
        PluginRefusedError: a subclass for what is wrong.
    """
    files = installed_files(plugin)
    digest = files.digest(plugin)
    for fault in (_added(files), _shadowed(plugin, files), _bytecode(files)):
        shown = sorted(fault)
        if shown:
            more = f" and {len(shown) - _MAX_SHOWN} more" if len(shown) > _MAX_SHOWN else ""
            raise PluginStrangeFileError(
                plugin,
                "; ".join(shown[:_MAX_SHOWN]) + more,
                f"remove what does not belong to it and reinstall it with: pip install --force-reinstall "
                f"{plugin.distribution}=={plugin.version}",
            )
    return digest


def _added(files: InstalledFiles) -> Iterator[str]:
    """Files that lie in the distribution's folders and that its RECORD does not list."""
    known = {os.path.normpath(files.root / path) for path in files.paths}
    for folder in _own_folders(files):
        for place, folders, names in os.walk(folder):
            links = [name for name in folders if os.path.islink(os.path.join(place, name))]
            for name in [*names, *links]:
                path = os.path.join(place, name)
                if path not in known and not _is_bytecode_cache(path):
                    yield f"{os.path.relpath(path, files.root)} is not in its RECORD"


def _own_folders(files: InstalledFiles) -> set[str]:
    folders = {os.path.dirname(path) for path in files.paths if not path.startswith(("../", "/", f"{files.info}/"))}
    return {os.path.normpath(files.root / folder) for folder in folders if folder}


def _is_bytecode_cache(path: str) -> bool:
    return path.endswith(".pyc") and os.path.basename(os.path.dirname(path)) == "__pycache__"


def _shadowed(plugin: InstalledPlugin, files: InstalledFiles) -> Iterator[str]:
    """Modules of the distribution that an import would find elsewhere."""
    own = {os.path.realpath(files.root / path) for path in files.paths}
    importlib.invalidate_caches()
    entry = entrypoints.EntryPoint.from_string(plugin.value, plugin.name).module_name
    for module in {entry, *_modules(files)}:
        origin = _origin(module)
        if origin is not None and os.path.realpath(origin) not in own:
            yield f"importing {module} would run {origin}, which is not in its RECORD"
        elif origin is None and module == entry:
            yield f"its RECORD has no module {module}, which the entry point names"


def _modules(files: InstalledFiles) -> set[str]:
    """All of them, not the topmost alone: where a folder has no ``__init__``, each is looked for along the path."""
    suffixes = tuple(all_suffixes())
    parts = [path.split("/") for path in files.paths if path.endswith(suffixes)]
    named = [(*folders, file.partition(".")[0]) for *folders, file in parts]
    names = [name[:-1] if name[-1] == "__init__" else name for name in named]
    return {".".join(name) for name in names if name and all(part.isidentifier() for part in name)}


def _origin(module: str) -> str | None:
    """The file that an import would run, or did run; ``None`` if there is none, or only a namespace."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None)
    name, locations, origin = "", None, None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = _top_spec(name) if locations is None else PathFinder.find_spec(name, locations)
        if spec is None:
            return None
        origin, locations = spec.origin, spec.submodule_search_locations or []
    return origin


def _top_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # something under this name is loaded and does not say where from
        return None


def _bytecode(files: InstalledFiles) -> Iterator[str]:
    """Sources whose cached bytecode, which an import prefers, is not their own."""
    for path in files.paths:
        if path.endswith(".py") and not _runs_itself(str(files.root / path)):
            yield f"the cached bytecode of {path} is not what {path} compiles to"


def _runs_itself(path: str) -> bool:
    reader = _Reader("_", path)
    if not Path(importlib.util.cache_from_source(path)).exists():
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return bool(reader.get_code("_") == reader.source_to_code(reader.get_data(path), path))
        except (SyntaxError, ImportError, EOFError, ValueError, TypeError):
            return False


class _Reader(SourceFileLoader):
    """Reads as an import does, and leaves nothing behind."""

    def set_data(self, path: str, data: object, *, _mode: int = 0) -> None:
        """Write nothing."""
