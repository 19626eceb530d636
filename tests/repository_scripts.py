"""The programs of ``scripts/``, which are no package, as modules."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[1] / "scripts"


@contextlib.contextmanager
def script(name: str) -> Iterator[ModuleType]:
    """Load ``scripts/NAME.py`` as a module for a while."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its data classes look there
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[name]
