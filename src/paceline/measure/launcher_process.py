"""Start ``paceline run`` in a child process that does not outlive this one, end and quote it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any

from paceline.errors import Finding
from paceline.machine import own_process, system

_MOST_LINES = 4  # of what a failed launcher printed
_END_S = 15.0  # how long a launcher may take to end its ranks


def start(
    words: Sequence[str], *, environ: Mapping[str, str], output: IO[Any]
) -> subprocess.Popen[bytes]:
    """Start ``paceline`` in the working folder."""
    return subprocess.Popen(
        own_process.command(*words),
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        preexec_fn=_end_with_parent,  # noqa: PLW1509  # imports nothing and takes no lock
    )


def end(child: subprocess.Popen[bytes]) -> None:
    """End a launcher and its ranks; return when it has ended."""
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_END_S)
        return
    child.kill()
    child.wait()


def reason(finding: Finding | None, output: str) -> tuple[str, ...]:
    """Return why a launcher failed: its first finding, or else the end of what it printed. Pure."""
    if finding is None:
        return tuple(output.strip().splitlines()[-_MOST_LINES:])
    head = f"{finding.code} {finding.name}: {finding.what}"
    return (head, *finding.evidence[:_MOST_LINES])


def _end_with_parent() -> None:
    system.die_with_parent(signal.SIGTERM)
