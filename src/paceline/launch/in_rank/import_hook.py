"""Call a function as soon as a module has been imported, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Call ``action`` once the top-level module ``name`` has been imported, or now if it has been.

    A script may set variables that the module reads while it is imported, so nothing else may
    import it first.
    """
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Watcher(name, action))


class _Watcher(MetaPathFinder):
    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute, action = spec.loader.exec_module, self._action

            def execute_then_act(module: ModuleType) -> None:
                execute(module)
                action()

            spec.loader.exec_module = execute_then_act  # type: ignore[method-assign]
        return spec
