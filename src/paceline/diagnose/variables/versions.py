"""Compare versions of libraries by their first two parts: a patch release neither adds nor removes
a variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

Release = tuple[int, int]


def release(version: str | None) -> Release | None:
    """Return major and minor of ``2.29.7`` or ``2.13.0+cu126``, None if it is not known or not a
    version.
    """
    match = re.match(r"\s*v?(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2])) if match else None


def newest(versions: Iterable[str]) -> str:
    """Return the newest of versions."""
    return max(versions, key=lambda version: release(version) or (0, 0))


def at_least(versions: Mapping[str, str], library: str, minimum: str) -> bool | None:
    """Return whether the installed library is this version or newer; None if its version is not
    known.
    """
    have, need = release(versions.get(library)), release(minimum)
    return None if have is None or need is None else have >= need
