"""Read the limits of this process, as ``ulimit`` shows them."""

from __future__ import annotations

import contextlib
import resource

UNLIMITED = -1
_KINDS = {"nofile": "RLIMIT_NOFILE", "memlock": "RLIMIT_MEMLOCK", "stack": "RLIMIT_STACK"}


def soft(name: str) -> int | None:
    """Return the limit in effect, such as ``nofile``: -1 is unlimited, None that there is none."""
    return _limits(name)[0]


def hard(name: str) -> int | None:
    """Return the maximum to which this process may raise the limit in effect."""
    return _limits(name)[1]


def raise_open_files() -> None:
    """Let this process, and what it forks from now on, open as many files as the user may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses what it calls the maximum
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _limits(name: str) -> tuple[int | None, int | None]:
    kind = getattr(resource, _KINDS[name], None)
    if kind is None:
        return None, None
    now, most = (
        UNLIMITED if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(kind)
    )
    return now, most
