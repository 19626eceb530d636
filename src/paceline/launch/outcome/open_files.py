"""Decide whether the launcher may open enough files, and say when it could not. Pure."""

from __future__ import annotations

from paceline.errors import Finding
from paceline.machine.ulimits import UNLIMITED

# Measured: 24 files of the launcher itself, 6 for each of its ranks (output, log, and memory for
# reports), and 1 at the head for each connection to the store of the run.
_OWN, _OF_RANK, _OF_CONNECTION = 64, 8, 2
REACHED = "the launcher could not open more files: ranks may wait for it in vain"
_FIX = "ulimit -n 65536 before the start; if that is refused: nofile in /etc/security/limits.conf"


def shortage(
    limit: int | None,  # of open files, None if there is none
    *,
    host: str,
    num_local: int,  # ranks of this node
    num_ranks: int,  # ranks that connect to this node's store
) -> Finding | None:
    """Return the warning that a run needs more files than its launcher may open; else None."""
    needed = _OWN + _OF_RANK * num_local + _OF_CONNECTION * num_ranks
    if limit is None or limit == UNLIMITED or limit >= needed:
        return None
    return Finding(
        "too-many-open-files",
        f"the launcher may open {limit} files at most, and these ranks need some {needed}",
        where=f"ulimit -Hn on {host}",
        why="it holds the output and the log of each of its ranks, and connections of all ranks",
        fix=_FIX,
        severity="warning",
    )


def reached(host: str) -> Finding:
    """Return the finding that the launcher could not open a file or accept a connection."""
    return Finding(
        "too-many-open-files",
        REACHED,
        where=f"ulimit -n of the launcher on {host}",
        fix=_FIX,
        severity="warning",
    )
