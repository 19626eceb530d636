"""The modules of the tests: described in the test process, imported in the ranks.

pytest chooses the names under which it imports test modules, and rewrites their assertions. A rank
imports the same file under the same name, with pytest's own rewriting, so that functions can be
pickled by name and a failed assertion is explained as usual.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from importlib import util
from types import ModuleType
from typing import Any

from paceline.machine.user_code import is_users
from paceline.testing.job import ModuleSource

_HOOK = "AssertionRewritingHook"


def describe(names: Iterable[str]) -> tuple[ModuleSource, ...]:
    """Return the modules that ranks cannot import by name alone, each after its packages.

    Those are the user's; unknown ones and those of installed packages are left out.
    """
    sources: dict[str, ModuleSource] = {}
    for name in names:
        module = sys.modules.get(name)
        if module is None or not is_users(getattr(module, "__file__", None) or "<built-in>"):
            continue
        for prefix in _prefixes(name):
            if prefix in sys.modules and prefix not in sources:
                sources[prefix] = _source(prefix, sys.modules[prefix])
    return tuple(sources.values())


def _prefixes(name: str) -> Iterator[str]:
    """Return ``a``, ``a.b`` and ``a.b.c`` for ``a.b.c``."""
    parts = name.split(".")
    return (".".join(parts[: place + 1]) for place in range(len(parts)))


def _source(name: str, module: ModuleType) -> ModuleSource:
    search = getattr(module, "__path__", None)
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return ModuleSource(
        name=name,
        file=getattr(module, "__file__", None) or "",
        search=None if search is None else tuple(search),
        is_rewritten=type(loader).__name__ == _HOOK,
    )


def load(sources: Iterable[ModuleSource]) -> None:
    """Import modules in a rank, unless they are imported already."""
    for source in sources:
        imported = sys.modules.get(source.name)
        if imported is None or (getattr(imported, "__file__", None) or "") != source.file:
            _load(source)


def _load(source: ModuleSource) -> None:
    module = _from_file(source) if source.file else _without_file(source)
    parent, _, name = source.name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], name, module)


def _without_file(source: ModuleSource) -> ModuleType:
    try:
        return importlib.import_module(source.name)
    except ImportError:  # pytest has made up a package for a folder that is not on the path
        module = ModuleType(source.name)
        module.__path__ = list(source.search or ())
        sys.modules[source.name] = module
        return module


def _from_file(source: ModuleSource) -> ModuleType:
    search = None if source.search is None else list(source.search)
    loader = _rewriting_hook() if source.is_rewritten else None
    spec = util.spec_from_file_location(
        source.name, source.file, loader=loader, submodule_search_locations=search
    )
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{source.file} is not a Python module", name=source.name)
    module = util.module_from_spec(spec)
    sys.modules[source.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[source.name]
        raise
    return module


def _rewriting_hook() -> Any:
    """Return the loader of this process's pytest that rewrites assertions; None without one."""
    return next((hook for hook in sys.meta_path if type(hook).__name__ == _HOOK), None)
