"""Tell the user's code from libraries: by where a file is, and by who has installed it.

Standard library only.
"""

from __future__ import annotations

import functools
import itertools
import os
import sysconfig
from pathlib import Path

from paceline import version

# The outermost frame of a rank that the launcher has forked.
_COMMAND = os.path.join(os.path.realpath(sysconfig.get_path("scripts")), "paceline")
_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for path in {
        *(sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib"))
    }
)
# Entries of a folder that are read at most: a script may lie beside a million images.
_MOST_ENTRIES = 5000


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Return whether a file is the user's: not of Python, an installed package or paceline."""
    if file.startswith("<"):
        return False
    real = os.path.realpath(file)
    return (
        not real.startswith(_LIBRARIES)
        and "site-packages" not in real
        and not real.startswith(version.FOLDER)
        and real != _COMMAND
        and not _is_installed(Path(real))
    )


def _is_installed(file: Path) -> bool:
    """Return whether pip has installed a file into a folder of its own: ``--target DIR``."""
    package = file
    while (package.parent / "__init__.py").exists():
        package = package.parent
    namespace = package.parent
    return any(it.name in _installed_in(it.parent) for it in (package, namespace))


@functools.lru_cache(maxsize=256)
def _installed_in(folder: Path) -> frozenset[str]:
    """Return the names of the files and folders that the packages in a folder have brought."""
    names = set()
    try:
        with os.scandir(folder) as entries:
            beside = [entry.path for entry in itertools.islice(entries, _MOST_ENTRIES)]
        for path in (path for path in beside if path.endswith(".dist-info")):
            text = Path(path, "RECORD").read_text(encoding="utf-8", errors="replace")
            names |= {line.partition(",")[0].partition("/")[0] for line in text.splitlines()}
    except OSError:  # what cannot be read counts as the user's
        pass
    return frozenset(names)
